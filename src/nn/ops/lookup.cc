#include "nn/ops/lookup.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <utility>

#include "nn/composite/composite.h"
#include "nn/ops/device.h"
#include "tensor/device.h"
#include "tensor/gradient_place.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class Lookup : public torch::autograd::Function<Lookup> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& ids,
                            const GradientSlot& slot, std::int64_t padding_idx) {
    ctx->save_for_backward({ids, table});
    ctx->saved_data["padding_idx"] = padding_idx;
    if (slot) ctx->saved_data["slot"] = c10::IValue::make_capsule(slot);
    ctx->saved_data["num"] = table.size(0);
    return at::index_select(table, 0, ids);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& ids = saved[0];
    const auto padding = ids.eq(ctx->saved_data["padding_idx"].toInt());
    const bool any_padding = padding.any().item<bool>();
    const auto rows = any_padding ? grads[0].masked_fill(padding.unsqueeze(1), 0) : grads[0];
    at::Tensor table;
    const auto held = ctx->saved_data.find("slot");
    if (held != ctx->saved_data.end()) {
      table = std::exchange(c10::static_intrusive_pointer_cast<SharedGradient>(held->second.toCapsule())->value, {});
    }
    if (const auto prepared = tensor::reserve_gradient(saved[1])) {
      auto& memory = prepared->memory;
      if (table.defined())
        prepared->filled ? memory.add_(table) : memory.copy_(table);
      else if (!prepared->filled)
        memory.zero_();
      memory.index_add_(0, ids, rows.to(memory.scalar_type()));
      prepared->place->commit(prepared);
      return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
    }
    if (!table.defined()) table = at::zeros({ctx->saved_data["num"].toInt(), grads[0].size(1)}, grads[0].options());
    table.index_add_(0, ids, rows);
    return {table, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_ids(const at::Tensor& given, std::int64_t num) {
  const auto ids = tensor::on_host(given).to(at::kLong).contiguous();
  const auto* p = ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    if (p[i] < 0 || p[i] >= num) {
      throw DataError("token id " + std::to_string(p[i]) + " at position " + std::to_string(i) +
                      " of the batch is outside the embedding table of " + std::to_string(num) +
                      " rows; the tokenizer does not belong to this model");
    }
  }
}

}  // namespace

at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids, const GradientSlot& slot, std::int64_t padding_idx) {
  check_ids(ids, table.size(0));
  if (!has_kernels(table)) return composite::lookup(table, ids.to(at::kLong), padding_idx);
  const auto flat = ids.reshape({-1}).to(at::kLong).contiguous();
  auto sizes = ids.sizes().vec();
  sizes.push_back(table.size(1));
  return Lookup::apply(table, flat, slot, padding_idx).view(sizes);
}

}  // namespace tessera::nn
