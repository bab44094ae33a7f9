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
  const auto values = matrix.detach().to(at::kFloat).contiguous();
  PackedMatrix packed{codec, matrix.size(0), matrix.size(1), {}};
  if (!values.is_cpu()) {
    if (const auto* there = dynamic_cast<const DeviceCodec*>(codec.get())) packed.fields = there->encode_there(values);
    if (!packed.fields.empty()) return packed;
    packed = pack(codec, values.cpu());
    for (auto& field : packed.fields) field = field.to(values.device());
    return packed;
  }
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
  // Floats in between stay in the first cache. Several rows at a time, for formats whose words hold codes of several.
  constexpr std::int64_t kNumel = 1 << 13, kColumns = 512;
  const at::NoGradGuard no_grad;
  if (!matrix.fields.front().is_cpu()) {
    if (const auto* there = dynamic_cast<const DeviceCodec*>(matrix.codec.get()))
      return there->decode_there(matrix, dtype).narrow(0, tile.row, tile.rows).narrow(1, tile.column, tile.columns);
    auto host = matrix;
    for (auto& field : host.fields) field = field.cpu();
    return unpack(host, tile, dtype).to(matrix.fields.front().device());
  }
  auto whole = at::empty({tile.rows, tile.columns}, dtype);
  const auto columns = std::min(kColumns, tile.columns), rows = kNumel / std::max<std::int64_t>(1, columns);
  at::parallel_for(0, (tile.rows + rows - 1) / rows, 1, [&](std::int64_t begin, std::int64_t end) {
    const at::NoGradGuard no_grad_here;
    const auto floats = dtype == at::kFloat ? at::Tensor() : at::empty({rows, columns}, at::kFloat);
    for (auto row = begin * rows; row < std::min(end * rows, tile.rows); row += rows) {
      for (std::int64_t column = 0; column < tile.columns; column += columns) {
        const MatrixTile part{tile.row + row, std::min(rows, tile.rows - row), tile.column + column,
                              std::min(columns, tile.columns - column)};
        if (!floats.defined()) {
          matrix.codec->decode(matrix, part, whole.mutable_data_ptr<float>() + row * tile.columns + column,
                               tile.columns);
          continue;
        }
        matrix.codec->decode(matrix, part, floats.mutable_data_ptr<float>(), columns);
        whole.narrow(0, row, part.rows)
            .narrow(1, column, part.columns)
            .copy_(floats.narrow(0, 0, part.rows).narrow(1, 0, part.columns));
      }
    }
  });
  return whole;
}

}  // namespace tessera::tensor
