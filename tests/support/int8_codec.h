#pragma once
// A packed form to test with: bytes of round(127 x / absmax), one float32 absmax for each block of elements.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/tensor/codec.h"

namespace tessera::testing {

class Int8Blocks final : public tensor::Codec {
 public:
  explicit Int8Blocks(std::int64_t block) : block_(block) {}
  std::string name() const override { return "int8, blocks of " + std::to_string(block_); }
  std::int64_t block_numel() const override { return block_; }
  std::vector<tensor::PackedField> fields(std::int64_t rows, std::int64_t columns) const override {
    return {{"", at::kByte, {rows, columns}, block_},
            {"absmax", at::kFloat, {(rows * columns + block_ - 1) / block_}, sizeof(float)}};
  }
  void encode(const float* values, std::int64_t numel, const std::vector<std::byte*>& out) const override {
    for (std::int64_t begin = 0; begin < numel; begin += block_) {
      const auto end = std::min(numel, begin + block_);
      float absmax = 0;
      for (auto i = begin; i < end; ++i) absmax = std::max(absmax, std::abs(values[i]));
      std::memcpy(out[1] + begin / block_ * 4, &absmax, 4);
      for (auto i = begin; i < end; ++i) {
        const auto code = static_cast<std::int8_t>(absmax > 0 ? std::lround(127 * values[i] / absmax) : 0);
        std::memcpy(out[0] + i, &code, 1);
      }
    }
  }
  void decode(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, float* out,
              std::int64_t stride) const override {
    const auto* codes = static_cast<const std::int8_t*>(matrix.fields[0].const_data_ptr());
    const auto* absmax = matrix.fields[1].const_data_ptr<float>();
    for (std::int64_t r = 0; r < tile.rows; ++r)
      for (std::int64_t c = 0; c < tile.columns; ++c) {
        const auto i = (tile.row + r) * matrix.columns + tile.column + c;
        out[r * stride + c] = static_cast<float>(codes[i]) * (absmax[i / block_] / 127);
      }
  }

 private:
  std::int64_t block_;
};

}  // namespace tessera::testing
