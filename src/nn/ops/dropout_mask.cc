#include "nn/ops/dropout_mask.h"

#include <ATen/ops/empty.h>

#include "tensor/device.h"
#include "tensor/rng.h"

namespace tessera::nn {
namespace {

struct SavedMask : torch::CustomClassHolder {
  explicit SavedMask(DropoutMask mask) : mask(std::move(mask)) {}
  DropoutMask mask;
};

}  // namespace

DropoutMask::DropoutMask(double p, std::int64_t rows) {
  if (p == 0) return;
  mask_ = kernels::make_mask(p, tensor::next_key());
  const auto& keys = tensor::random_state().rows;
  if (keys.defined() && keys.numel() == rows) rows_ = keys;
}

DropoutMask::DropoutMask(double p, at::Tensor keys) : mask_(kernels::make_mask(p, {})), own_keys_(std::move(keys)) {}

kernels::Mask DropoutMask::row(std::int64_t row) const {
  auto mask = mask_;
  mask.key = tensor::row_key(mask.key, rows_.defined() ? rows_.const_data_ptr<std::int64_t>()[row] : row);
  return mask;
}

at::Tensor DropoutMask::row_keys(std::int64_t rows, const at::Tensor& like) const {
  return own_keys_.defined() ? own_keys_ : keys_of(rows_, rows, like);
}

at::Tensor DropoutMask::keys_of(const at::Tensor& rows, std::int64_t count, const at::Tensor& like) {
  struct Made {
    at::Tensor rows, keys;
    std::int64_t count = -1;
  };
  thread_local Made last;  // all draws of a pass are for the same rows
  if (last.count == count && last.rows.is_same(rows) && last.keys.device() == like.device()) return last.keys;
  auto keys = at::empty({count, 2}, at::kInt);
  auto* key = static_cast<std::uint32_t*>(keys.mutable_data_ptr());
  for (std::int64_t r = 0; r < count; ++r) {
    const auto own = tensor::row_key({}, rows.defined() ? rows.const_data_ptr<std::int64_t>()[r] : r);
    key[2 * r] = own.a;
    key[2 * r + 1] = own.b;
  }
  last = {rows, tensor::beside(keys, like), count};
  return last.keys;
}

void DropoutMask::save(torch::autograd::AutogradContext* context) const {
  context->saved_data["mask"] = at::IValue::make_capsule(c10::make_intrusive<SavedMask>(*this));
}

DropoutMask DropoutMask::load(torch::autograd::AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<SavedMask>(context->saved_data["mask"].toCapsule())->mask;
}

}  // namespace tessera::nn
