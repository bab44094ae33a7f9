#include "models/padding.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <string>

#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::models {

at::Tensor PackedBatch::pack(const at::Tensor& x) const {
  const auto flat = x.flatten(0, 1);
  return index.defined() ? flat.index_select(0, tensor::beside(index, flat)) : flat;
}

at::Tensor PackedBatch::pack_beside(const at::Tensor& x, const at::Tensor& like) const {
  return tensor::beside(pack(tensor::on_host(x)), like);
}

at::Tensor PackedBatch::unpack(const at::Tensor& x) const {
  const auto flat = index.defined() ? at::zeros({batch * length, x.size(1)}, x.options()).index_copy(0, index, x) : x;
  return flat.view({batch, length, x.size(1)});
}

at::Tensor keys_at(const at::Tensor& places) {
  const auto& keys = tensor::random_state().rows;
  return keys.defined() ? keys.index_select(0, tensor::on_host(places)) : keys;
}

PackedBatch pack_batch(const at::Tensor& mask_in, std::int64_t batch, std::int64_t length) {
  PackedBatch out;
  out.batch = batch;
  out.length = length;
  out.rows = std::make_shared<nn::SequenceRows>(nn::SequenceRows::uniform(batch, length, length));
  if (!mask_in.defined()) return out;
  if (mask_in.dim() != 2 || mask_in.size(0) != batch || mask_in.size(1) != length) {
    throw DataError("attention_mask must have the shape of input_ids [" + std::to_string(batch) + ", " +
                    std::to_string(length) + "]");
  }
  const auto mask = tensor::on_host(mask_in).ne(0).contiguous();
  const bool* p = mask.const_data_ptr<bool>();
  auto rows = std::make_shared<nn::SequenceRows>();
  std::vector<std::int64_t> index;
  bool removable = true;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t first = length, last = -1, count = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      if (!p[b * length + i]) continue;
      first = std::min(first, i);
      last = i;
      ++count;
    }
    removable = removable && count > 0 && last - first + 1 == count;
    rows->begin.push_back(static_cast<std::int64_t>(index.size()));
    rows->length.push_back(count);
    for (std::int64_t i = first; i <= last; ++i) index.push_back(b * length + i);
  }
  if (!removable) {
    out.visible = tensor::beside(mask.to(at::kByte).flatten(), mask_in);
  } else if (static_cast<std::int64_t>(index.size()) < batch * length) {
    out.rows = std::move(rows);
    out.index = tensor::beside(at::tensor(index, at::TensorOptions().dtype(at::kLong)), mask_in);
  }
  return out;
}

at::Tensor token_keys(const at::Tensor& row_ids, const at::Tensor& mask, std::int64_t batch, std::int64_t length) {
  if (!row_ids.defined()) return {};
  TESSERA_CHECK(row_ids.size(0) == batch && (row_ids.dim() == 1 || row_ids.size(1) == length),
                "row_ids is [rows] or has the shape of input_ids");
  const bool many = row_ids.dim() == 2;
  const auto ids = tensor::on_host(row_ids).contiguous();
  const auto seen = mask.defined() ? tensor::on_host(mask).ne(0).contiguous() : at::Tensor();
  auto out = at::zeros({batch, length}, at::TensorOptions().dtype(at::kLong));
  const auto* id = ids.const_data_ptr<std::int64_t>();
  const bool* visible = seen.defined() ? seen.const_data_ptr<bool>() : nullptr;
  auto* key = out.mutable_data_ptr<std::int64_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t place = 0;
    for (std::int64_t i = b * length; i < (b + 1) * length; ++i) {
      const std::int64_t row = many ? id[i] : id[b];
      if (many && i > b * length && id[i - 1] != row) place = 0;
      key[i] = (row << 24) + place;
      if (place > 0 || !visible || visible[i]) ++place;
    }
  }
  return out;
}

}  // namespace tessera::models
