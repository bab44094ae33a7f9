#include "nn/ops/packed_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_few_rows.h"
#include "nn/kernels/row_kernels.h"
#include "nn/kernels/row_products.h"
#include "nn/ops/rows.h"
#include "tensor/panel_codec.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kCachedBytes = 32 << 10;  // of decoded rows
constexpr std::int64_t kMostTogether = 16;       // rows of the matrix

const std::uint16_t* bits_of(const at::Tensor& t) {
  return static_cast<const std::uint16_t*>(t.const_data_ptr());
}

/// Rows [first, first + count) as bfloat16, one after the other.
void decode_bfloat16(const tensor::PackedMatrix& matrix, std::int64_t first, std::int64_t count, std::uint16_t* out) {
  const auto* codec = dynamic_cast<const tensor::PanelCodec*>(matrix.codec.get());
  if (codec && codec->decode_rows(matrix, {first, count, 0, matrix.columns}, out, matrix.columns)) return;
  constexpr std::int64_t kPart = 256, kVector = 16;  // of columns: a large block
  alignas(64) std::array<float, kMostTogether * kPart> values;
  const auto together = std::min(count, matrix.codec->rows_together());
  const auto most = kMostTogether / together * kPart;
  for (std::int64_t done = 0; done < count; done += together) {
    const auto rows = std::min(together, count - done);
    for (std::int64_t begin = 0; begin < matrix.columns; begin += most) {
      const auto columns = std::min(most, matrix.columns - begin);
      const auto vectors = columns / kVector * kVector;  // narrow_row() writes whole ones
      matrix.codec->decode(matrix, {first + done, rows, begin, columns}, values.data(), most);
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto* row = values.data() + r * most;
        auto* to = out + (done + r) * matrix.columns + begin;
        kernels::narrow_row(row, to, vectors);
        kernels::narrow(row + vectors, to + vectors, columns - vectors);
      }
    }
  }
}

/// Calls body(first, count, values) with decoded rows: T values [count, columns].
template <class T, class Body>
void for_decoded_rows(const tensor::PackedMatrix& matrix, const Body& body) {
  const std::int64_t columns = matrix.columns, row_bytes = std::max<std::int64_t>(1, columns) * std::int64_t{sizeof(T)};
  const auto together = std::clamp<std::int64_t>(kCachedBytes / row_bytes, 1, kMostTogether);
  for_rows(matrix.rows, columns, [&](std::int64_t begin, std::int64_t end) {
    const auto scratch = at::empty({together * row_bytes}, at::kByte);  // whole vectors lie in cache lines
    auto* values = static_cast<T*>(scratch.mutable_data_ptr());
    for (auto first = begin; first < end; first += together) {
      const auto count = std::min(together, end - first);
      if constexpr (std::is_same_v<T, float>) {
        matrix.codec->decode(matrix, {first, count, 0, columns}, values, columns);
      } else {
        decode_bfloat16(matrix, first, count, values);
      }
      body(first, count, values);
    }
  });
}

const tensor::FewRowsCodec* few_rows_codec(const tensor::PackedMatrix& matrix) {
  return dynamic_cast<const tensor::FewRowsCodec*>(matrix.codec.get());
}

/// In float32; undefined where the codec has no product of its own.
at::Tensor product_of_codec(const at::Tensor& x, const tensor::PackedMatrix& matrix) {
  const auto* codec = few_rows_codec(matrix);
  return codec ? codec->few_rows_product(matrix, x) : at::Tensor();
}

/// Of x in float32 with the matrix as it is, or rounded to a dtype of 16 bits.
at::Tensor float_product(const at::Tensor& x, const tensor::PackedMatrix& matrix, at::ScalarType dtype) {
  if (const auto y = product_of_codec(x, matrix); y.defined()) return y;
  const auto out = at::empty({x.size(0), matrix.rows}, at::kFloat);
  for_decoded_rows<float>(matrix, [&](std::int64_t first, std::int64_t count, float* values) {
    if (dtype == at::kBFloat16) kernels::round_to_bfloat16(values, count * matrix.columns);
    if (dtype == at::kHalf) kernels::round_to_float16(values, count * matrix.columns);
    kernels::row_products(x.const_data_ptr<float>(), x.size(0), values, {count, matrix.columns, matrix.columns},
                          out.mutable_data_ptr<float>() + first, matrix.rows);
  });
  return out;
}

struct Bfloat16Product {
  const at::Tensor &x, &u, &v, &out;
  std::int64_t few() const { return x.size(0); }
  /// Writes columns [first, first + count) of out, of sums x W^T that are `stride` apart.
  void put(std::int64_t first, std::int64_t count, float* sums, std::int64_t stride) const {
    if (u.defined())
      kernels::cached_row_products(bits_of(u), u.stride(0), few(), bits_of(v) + first * v.stride(1),
                                   {count, v.size(0), v.stride(1)}, sums, stride, true);
    auto* to = static_cast<std::uint16_t*>(out.mutable_data_ptr()) + first;
    for (std::int64_t f = 0; f < few(); ++f) kernels::narrow(sums + f * stride, to + f * out.size(1), count);
  }
};

void bfloat16_product(const Bfloat16Product& p, const tensor::PackedMatrix& matrix) {
  if (const auto y = product_of_codec(p.x, matrix); y.defined()) {
    return for_rows(matrix.rows, p.few(), [&](std::int64_t begin, std::int64_t end) {
      p.put(begin, end - begin, y.mutable_data_ptr<float>() + begin, matrix.rows);
    });
  }
  for_decoded_rows<std::uint16_t>(matrix, [&](std::int64_t first, std::int64_t count, const std::uint16_t* values) {
    std::array<float, kMostFewRows * kMostTogether> sums;
    kernels::cached_row_products(bits_of(p.x), p.x.stride(0), p.few(), values, {count, matrix.columns, matrix.columns},
                                 sums.data(), kMostTogether, false);
    p.put(first, count, sums.data(), kMostTogether);
  });
}

}  // namespace

bool has_few_packed_rows(const at::Tensor& x, const tensor::PackedMatrix& matrix) {
  const auto dtype = x.scalar_type();
  const bool takes_dtype = dtype == at::kFloat || (dtype == at::kBFloat16 && kernels::has_bf16_dot()) ||
                           ((dtype == at::kBFloat16 || dtype == at::kHalf) && few_rows_codec(matrix));
  return x.is_cpu() && x.dim() == 2 && x.size(0) > 0 && x.size(0) <= kMostFewRows && takes_dtype;
}

bool has_rows_to_add(const at::Tensor& x, const at::Tensor& u, const at::Tensor& v) {
  const auto is_bfloat16 = [](const at::Tensor& t) { return t.is_cpu() && t.scalar_type() == at::kBFloat16; };
  return kernels::has_bf16_dot() && is_bfloat16(x) && u.defined() && is_bfloat16(u) && is_bfloat16(v) &&
         u.stride(1) == 1 && v.stride(0) == 1;
}

at::Tensor packed_rows_product(const at::Tensor& x, const tensor::PackedMatrix& matrix, const at::Tensor& u,
                               const at::Tensor& v) {
  if (const auto dtype = x.scalar_type(); dtype != at::kBFloat16 || !kernels::has_bf16_dot())
    return float_product(x.to(at::kFloat).contiguous(), matrix, dtype).to(dtype);
  auto out = at::empty({x.size(0), matrix.rows}, x.options());
  bfloat16_product({x.stride(1) == 1 ? x : x.contiguous(), u, v, out}, matrix);
  return out;
}

}  // namespace tessera::nn
