#include "quant/int8_codec.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/round.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "quant/code_kernels.h"

namespace tessera::quant {
namespace {

constexpr std::size_t kInt8Codes = 0, kInt8Scales = 1;  // places among the fields

float in_half(float x) {
  return static_cast<float>(c10::Half(x));
}

class Int8Codec final : public tensor::Codec {
 public:
  Int8Codec(std::int64_t columns, double threshold) : columns_(columns), threshold_(threshold) {}

  std::string name() const override {
    auto text = fmt::format("int8, rows of {}", columns_);
    return threshold_ > 0 ? text + fmt::format(", outliers from {}", threshold_) : text;
  }
  std::int64_t block_numel() const override { return columns_; }

  /// Scales are made of whole rows, wherever a slice of the codes ends.
  std::vector<tensor::PackedField> fields(std::int64_t rows, std::int64_t columns) const override {
    return {{"", at::kChar, {rows, columns}, 1}, {"SCB", at::kFloat, {rows}, sizeof(float)}};
  }

  void encode(const float* values, std::int64_t numel, const std::vector<std::byte*>& out) const override {
    auto* scales = reinterpret_cast<float*>(out[kInt8Scales]);
    int8_scales(values, numel / columns_, columns_, scales);
    encode_int8(values, numel / columns_, columns_, scales, reinterpret_cast<std::int8_t*>(out[kInt8Codes]));
  }

  void decode(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, float* out,
              std::int64_t stride) const override {
    const auto* codes = matrix.fields[kInt8Codes].const_data_ptr<std::int8_t>();
    const auto* scales = matrix.fields[kInt8Scales].const_data_ptr<float>();
    for (std::int64_t r = tile.row; r < tile.row + tile.rows; ++r, out += stride) {
      const float scale = scales[r] * static_cast<float>(1.0 / 127.0);
      const auto* row = codes + r * matrix.columns + tile.column;
      scale_int8(row, tile.columns, scale, out);
    }
  }

  at::Tensor inference_product(const tensor::PackedMatrix& matrix, const at::Tensor& x) const override {
    const at::NoGradGuard no_grad;
    const auto rows = int8_rows(x, threshold_);
    const auto &codes = matrix.fields[kInt8Codes], scales = matrix.fields[kInt8Scales].unsqueeze(0);
    constexpr double kSquared = 6.200124e-05;  // 1 / 127^2, as bitsandbytes has it
    const auto sums = at::_int_mm(rows.codes, codes.t());
    auto y = (sums * (rows.scales.unsqueeze(1) * scales)).mul_(kSquared).to(x.scalar_type());
    if (!rows.outliers.defined() || rows.outliers.numel() == 0) return y;
    const auto columns =
        (codes.index_select(1, rows.outliers).to(at::kFloat) * scales.t()).mul_(1.0 / 127).to(x.scalar_type());
    return at::addmm(y, x.index_select(1, rows.outliers), columns.t());
  }

 private:
  std::int64_t columns_;
  double threshold_;
};

}  // namespace

std::shared_ptr<const tensor::Codec> int8_codec(std::int64_t columns, double threshold) {
  return std::make_shared<Int8Codec>(columns, threshold);
}

void int8_scales(const float* x, std::int64_t rows, std::int64_t columns, float* scales) {
  for (std::int64_t r = 0; r < rows; ++r, x += columns) {
    float largest = 0;
    for (std::int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(x[c]));
    scales[r] = in_half(largest);  // rounding keeps the order
  }
}

void encode_int8(const float* x, std::int64_t rows, std::int64_t columns, const float* scales, std::int8_t* codes) {
  for (std::int64_t r = 0; r < rows; ++r, x += columns, codes += columns) {
    const float factor = scales[r] > 0 ? 1.0f / scales[r] * 127.0f : 0.0f;
    for (std::int64_t c = 0; c < columns; ++c)
      codes[c] = static_cast<std::int8_t>(std::nearbyint(in_half(x[c]) * factor));
  }
}

Int8Rows int8_rows(const at::Tensor& x, double threshold) {
  const at::NoGradGuard no_grad;
  Int8Rows out;
  auto values = x.to(at::kHalf);
  if (threshold > 0) {
    const auto is_outlier = values.abs().ge(threshold);
    out.outliers = is_outlier.any(0).nonzero().view(-1);
    if (out.outliers.numel() > 0) values = values.masked_fill(is_outlier, 0);
  }
  values = values.to(at::kFloat);
  out.scales = values.abs().amax(1);
  const auto scaled = values.mul_(out.scales.reciprocal().mul_(127.0).unsqueeze(1));
  out.codes = at::nan_to_num(at::round(scaled), 0.0).to(at::kChar);  // a row of zeros
  if (out.outliers.defined() && out.outliers.numel() > 0) out.codes.index_fill_(1, out.outliers, 0);
  return out;
}

}  // namespace tessera::quant
