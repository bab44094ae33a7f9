#include "tessera/tensor/codec.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tensor/device_codec.h"
#include "tessera/base/error.h"

namespace tessera::tensor {

PackedMatrix pack(const std::shared_ptr<const Codec>& codec, const at::Tensor& matrix) {
  const at::NoGradGuard no_grad;
  TESSERA_CHECK(matrix.dim() == 2, "what is packed is a matrix");
  const auto values = matrix.detach().to(at::kCPU, at::kFloat).contiguous();
  PackedMatrix packed{codec, matrix.size(0), matrix.size(1), {}};
  std::vector<std::byte*> out;
  for (const auto& field : codec->fields(packed.rows, packed.columns)) {
    packed.fields.push_back(at::empty(field.shape, field.dtype));
    out.push_back(static_cast<std::byte*>(packed.fields.back().mutable_data_ptr()));
  }
  codec->encode(values.const_data_ptr<float>(), values.numel(), out);
  return packed;
}

at::Tensor unpack(const PackedMatrix& matrix, at::ScalarType dtype) {
  return unpack(matrix, {0, matrix.rows, 0, matrix.columns}, dtype);
}

at::Tensor unpack(const PackedMatrix& matrix, const MatrixTile& tile, at::ScalarType dtype) {
  constexpr std::int64_t kNumel = 1 << 13;  // floats in between stay in the first cache
  const at::NoGradGuard no_grad;
  if (!matrix.fields.front().is_cpu()) {
    if (const auto* there = dynamic_cast<const DeviceCodec*>(matrix.codec.get()))
      return there->decode_there(matrix).narrow(0, tile.row, tile.rows).narrow(1, tile.column, tile.columns).to(dtype);
    auto host = matrix;
    for (auto& field : host.fields) field = field.cpu();
    return unpack(host, tile, dtype);
  }
  auto whole = at::empty({tile.rows, tile.columns}, dtype);
  const auto rows = std::max<std::int64_t>(1, kNumel / std::max<std::int64_t>(1, tile.columns));
  at::parallel_for(0, (tile.rows + rows - 1) / rows, 1, [&](std::int64_t begin, std::int64_t end) {
    const at::NoGradGuard no_grad_here;
    auto floats = dtype == at::kFloat ? at::Tensor() : at::empty({rows, tile.columns}, at::kFloat);
    for (auto i = begin; i < end; ++i) {
      const auto count = std::min(rows, tile.rows - i * rows);
      auto to = whole.narrow(0, i * rows, count);
      auto values = floats.defined() ? floats.narrow(0, 0, count) : to;
      matrix.codec->decode(matrix, {tile.row + i * rows, count, tile.column, tile.columns},
                           values.mutable_data_ptr<float>(), tile.columns);
      if (floats.defined()) to.copy_(values);
    }
  });
  return whole;
}

}  // namespace tessera::tensor
