#include "models/decoder_batch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <string>

#include "tensor/device.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

void check_shape(const at::Tensor& t, const at::Tensor& ids, const char* name) {
  if (t.defined() && t.sizes() != ids.sizes()) {
    throw DataError(std::string(name) + " must have the shape of input_ids [" + std::to_string(ids.size(0)) + ", " +
                    std::to_string(ids.size(1)) + "]");
  }
}

at::Tensor shifted(const at::Tensor& labels) {
  auto out = at::full_like(labels, -100);
  const std::int64_t length = labels.size(1);
  if (length > 1) out.narrow(1, 0, length - 1).copy_(labels.narrow(1, 1, length - 1));
  return out;
}

// Documents of packed rows: a position that does not follow its predecessor by one starts a new one.
nn::SequenceRows documents(const at::Tensor& position_ids) {
  const auto ids = position_ids.contiguous();
  const auto* p = ids.const_data_ptr<std::int64_t>();
  const std::int64_t batch = ids.size(0), length = ids.size(1);
  nn::SequenceRows rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t at = b * length + i;
      if (i == 0 || p[at] != p[at - 1] + 1) {
        rows.begin.push_back(at);
        rows.length.push_back(0);
      }
      ++rows.length.back();
    }
  }
  return rows;
}

// Whether packing removes a position of these, [B, S] bool.
bool loses(const PackedBatch& packed, const at::Tensor& counts) {
  if (!counts.defined() || !packed.index.defined()) return false;
  return counts.sum().item<std::int64_t>() != packed.pack(counts).sum().item<std::int64_t>();
}

PackedBatch with_padding(const at::Tensor& mask) {
  PackedBatch out = pack_batch({}, mask.size(0), mask.size(1));
  out.visible = tensor::beside(tensor::on_host(mask).ne(0).to(at::kByte).flatten(), mask);
  return out;
}

at::Tensor default_positions(const ModelInput& in, bool count_visible) {
  const std::int64_t batch = in.input_ids.size(0), length = in.input_ids.size(1);
  if (count_visible && in.attention_mask.defined()) {
    const auto mask = tensor::on_host(in.attention_mask).ne(0).to(at::kLong);
    return mask.cumsum(1) * mask - 1;
  }
  return at::arange(length, at::TensorOptions().dtype(at::kLong)).unsqueeze(0).expand({batch, length});
}

}  // namespace

DecoderBatch make_decoder_batch(const ModelInput& in, bool count_visible, const at::Tensor& needed) {
  if (!in.input_ids.defined() || in.input_ids.dim() != 2)
    throw DataError("a causal model needs input_ids of shape [rows, length]");
  check_shape(in.attention_mask, in.input_ids, "attention_mask");
  check_shape(in.position_ids, in.input_ids, "position_ids");
  check_shape(in.labels, in.input_ids, "labels");
  DecoderBatch out;
  out.packed = pack_batch(in.attention_mask, in.input_ids.size(0), in.input_ids.size(1));
  const auto labels = in.labels.defined() ? shifted(tensor::on_host(in.labels)) : at::Tensor();
  const auto given_positions = tensor::on_host(in.position_ids);
  if (loses(out.packed, labels.defined() ? labels.ne(-100) : needed)) out.packed = with_padding(in.attention_mask);
  out.documents = in.position_ids.defined() && !in.attention_mask.defined();
  if (out.documents) out.packed.rows = std::make_shared<nn::SequenceRows>(documents(given_positions));
  const auto prefix = in.prefix.defined() ? in.prefix.size(1) : 0;
  const auto positions = (given_positions.defined() ? given_positions : default_positions(in, count_visible)) + prefix;
  out.ids = out.packed.pack_beside(in.input_ids, in.input_ids);
  out.positions = out.packed.pack_beside(positions, in.input_ids).contiguous();
  out.length = positions.numel() == 0 ? prefix + 1 : positions.max().item<std::int64_t>() + 1;
  if (labels.defined()) out.labels = out.packed.pack(labels);
  return out;
}

}  // namespace tessera::models
