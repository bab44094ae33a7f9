#include "quant/int8_codec.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/round.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "base/cpu_level.h"
#include "quant/code_kernels.h"
#include "quant/encode_kernels.h"
#include "quant/int8_products.h"
#include "tensor/device_codec.h"

namespace tessera::quant {
namespace {

constexpr std::size_t kInt8Codes = 0, kInt8Scales = 1;  // places among the fields
constexpr float kSquared = 6.200124e-05F;               // 1 / 127^2, as bitsandbytes has it

float in_half(float x) {
  return static_cast<float>(c10::Half(x));
}

/// libtorch multiplies codes one by one where the processor has no instructions for them. oneDNN may have been told to
/// do without (ONEDNN_MAX_CPU_ISA): its sums of two products then overflow.
bool multiplies_codes() {
#if defined(__x86_64__)
  static const bool exact = [] {
    if (cpu_level() < CpuLevel::kAvx512 || !__builtin_cpu_supports("avx512vnni")) return false;
    const at::NoGradGuard no_grad;
    constexpr std::int64_t kInner = 64, kLargest = 127;
    const auto largest = at::full({2, kInner}, kLargest, at::kChar);
    return at::_int_mm(largest, largest.t()).eq(kInner * kLargest * kLargest).all().item<bool>();
  }();
  return exact;
#else
  return true;
#endif
}

/// In float32, which holds the sums of so many products of codes.
at::Tensor product_by_floats(const at::Tensor& a, const at::Tensor& b) {
  constexpr std::int64_t kInner = (1 << 24) / (127 * 127);
  const auto part = [](const at::Tensor& t, std::int64_t begin, std::int64_t count) {
    return t.narrow(1, begin, count).to(at::kFloat);
  };
  auto sums = at::zeros({a.size(0), b.size(0)}, at::kInt);
  for (std::int64_t begin = 0; begin < a.size(1); begin += kInner) {
    const auto count = std::min(kInner, a.size(1) - begin);
    sums.add_(at::mm(part(a, begin, count), part(b, begin, count).t()).to(at::kInt));
  }
  return sums;
}

/// The sums of a few rows on a CPU, scaled: sum * (x's scale * w's scale) / 127^2, float32 [few, rows].
at::Tensor few_rows_product(const Int8Rows& x, const at::Tensor& codes, const at::Tensor& scales) {
  const auto few = x.codes.size(0), columns = codes.size(1), rows = codes.size(0);
  const auto shifted = x.codes.bitwise_xor(-128);  // code + 128 as a byte without a sign
  const auto y = at::empty({few, rows}, at::kFloat);
  const auto* w_scales = scales.const_data_ptr<float>();
  const auto* x_scales = x.scales.const_data_ptr<float>();
  at::parallel_for(0, rows, kElementsOfThread / columns + 1, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kTogether = 64;
    std::array<std::int32_t, kMostInt8Rows * kTogether> sums;
    for (; begin < end; begin += kTogether) {
      const auto count = std::min(kTogether, end - begin);
      int8_row_products(reinterpret_cast<const std::uint8_t*>(shifted.const_data_ptr<std::int8_t>()), columns, few,
                        codes.const_data_ptr<std::int8_t>() + begin * columns, count, columns, sums.data(), kTogether);
      for (std::int64_t f = 0; f < few; ++f) {
        auto* to = y.mutable_data_ptr<float>() + f * rows + begin;
        for (std::int64_t r = 0; r < count; ++r)
          to[r] = static_cast<float>(sums[static_cast<std::size_t>(f * kTogether + r)]) *
                  (x_scales[f] * w_scales[begin + r]) * kSquared;
      }
    }
  });
  return y;
}

/// a b^T, of codes, in int32. libtorch mistakes the rows of a single column. On a GPU it has products of more than 16
/// rows of a, and multiples of 8 otherwise.
at::Tensor int8_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) return multiplies_codes() && a.size(1) > 1 ? at::_int_mm(a, b.t()) : product_by_floats(a, b);
  constexpr std::int64_t kFewestRows = 24, kMultiple = 8;
  const auto missing = [](std::int64_t size) { return (kMultiple - size % kMultiple) % kMultiple; };
  const auto padded = [&](const at::Tensor& t, std::int64_t rows) {
    const auto columns = missing(t.size(1));
    return rows + columns == 0 ? t : at::constant_pad_nd(t, {0, columns, 0, rows});
  };
  const auto more = std::max(missing(a.size(0)), kFewestRows - a.size(0));
  return at::_int_mm(padded(a, more), padded(b, missing(b.size(0))).t())
      .narrow(0, 0, a.size(0))
      .narrow(1, 0, b.size(0));
}

/// int8_rows() by operators, where x lies.
Int8Rows rows_there(const at::Tensor& x, double threshold) {
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

class Int8Codec final : public tensor::Codec, public tensor::DeviceCodec {
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
    auto* codes = reinterpret_cast<std::int8_t*>(out[kInt8Codes]);
    const auto grain = std::max<std::int64_t>(1, kElementsOfThread / columns_);
    at::parallel_for(0, numel / columns_, grain, [&](std::int64_t first, std::int64_t last) {
      const auto begin = first * columns_;
      int8_scales(values + begin, last - first, columns_, scales + first);
      encode_int8(values + begin, last - first, columns_, scales + first, codes + begin);
    });
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

  at::Tensor decode_there(const tensor::PackedMatrix& matrix, at::ScalarType dtype) const override {
    const at::NoGradGuard no_grad;
    const auto scales = matrix.fields[kInt8Scales].mul(1.0 / 127.0).unsqueeze(1);
    return matrix.fields[kInt8Codes].to(at::kFloat).mul_(scales).to(dtype);
  }
  std::vector<at::Tensor> encode_there(const at::Tensor& matrix) const override {
    const auto rows = rows_there(matrix, /*threshold=*/0);
    return {rows.codes, rows.scales};
  }

  bool rounds_inputs() const override { return true; }
  at::Tensor inference_product(const tensor::PackedMatrix& matrix, const at::Tensor& x) const override {
    const at::NoGradGuard no_grad;
    const auto rows = int8_rows(x, threshold_);
    const auto &codes = matrix.fields[kInt8Codes], scales = matrix.fields[kInt8Scales].unsqueeze(0);
    const bool is_few = x.is_cpu() && x.size(0) > 0 && x.size(0) <= kMostInt8Rows && matrix.columns <= kMostInt8Columns;
    auto y = is_few && has_int8_products()
                 ? few_rows_product(rows, codes, matrix.fields[kInt8Scales])
                 : (int8_product(rows.codes, codes) * (rows.scales.unsqueeze(1) * scales)).mul_(kSquared);
    y = y.to(x.scalar_type());
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
  for (std::int64_t r = 0; r < rows; ++r, x += columns)
    scales[r] = in_half(largest_magnitude(x, columns));  // rounding keeps the order
}

void encode_int8(const float* x, std::int64_t rows, std::int64_t columns, const float* scales, std::int8_t* codes) {
  for (std::int64_t r = 0; r < rows; ++r, x += columns, codes += columns)
    int8_codes(x, columns, scales[r] > 0 ? 1.0f / scales[r] * 127.0f : 0.0f, codes);
}

Int8Rows int8_rows(const at::Tensor& x, double threshold) {
  const at::NoGradGuard no_grad;
  if (!x.is_cpu()) return rows_there(x, threshold);
  const auto rows = x.size(0), columns = x.size(1);
  const auto values = x.to(at::kFloat).contiguous();
  const float from = threshold > 0 ? in_half(static_cast<float>(threshold)) : std::numeric_limits<float>::infinity();
  Int8Rows out{at::empty({rows, columns}, at::kChar), at::empty({rows}, at::kFloat), {}};
  std::vector<char> has_outlier(static_cast<std::size_t>(columns));
  std::mutex mutex;  // of has_outlier
  at::parallel_for(0, rows, kElementsOfThread / columns + 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<char> found(threshold > 0 ? has_outlier.size() : 0);
    std::vector<float> without;  // a row's outliers
    for (auto r = begin; r < end; ++r) {
      const auto* row = values.const_data_ptr<float>() + r * columns;
      float scale = in_half(largest_magnitude(row, columns));
      if (threshold > 0 && !(scale < from)) {
        without.assign(row, row + columns);
        for (std::size_t c = 0; c < without.size(); ++c) {
          if (!(std::abs(in_half(without[c])) >= from)) continue;
          without[c] = 0;
          found[c] = 1;
        }
        row = without.data();
        scale = in_half(largest_magnitude(row, columns));
      }
      out.scales.mutable_data_ptr<float>()[r] = scale;
      encode_int8(row, 1, columns, &scale, out.codes.mutable_data_ptr<std::int8_t>() + r * columns);
    }
    const std::lock_guard lock(mutex);
    for (std::size_t c = 0; c < found.size(); ++c) has_outlier[c] |= found[c];
  });
  if (threshold <= 0) return out;
  std::vector<std::int64_t> outliers;
  for (std::int64_t c = 0; c < columns; ++c)
    if (has_outlier[static_cast<std::size_t>(c)]) outliers.push_back(c);
  out.outliers = at::empty({static_cast<std::int64_t>(outliers.size())}, at::kLong);
  std::copy(outliers.begin(), outliers.end(), out.outliers.mutable_data_ptr<std::int64_t>());
  if (!outliers.empty()) out.codes.index_fill_(1, out.outliers, 0);
  return out;
}

}  // namespace tessera::quant
