#pragma once
// Products of a few rows of int8 with the rows of a matrix of int8, which is read once, as it lies.
#include <cstdint>

namespace tessera::quant {

/// This processor has the instructions (AVX512_VNNI); without them int8_row_products() may not be called.
bool has_int8_products();

constexpr std::int64_t kMostInt8Rows = 8, kMostInt8Columns = 1 << 16;  // beyond, sums exceed int32

/// x: codes + 128, [few, columns], x_stride bytes apart. sums: of `count` rows of w [count, columns], the products of
/// codes: sums[f * stride + r].
void int8_row_products(const std::uint8_t* x, std::int64_t x_stride, std::int64_t few, const std::int8_t* w,
                       std::int64_t count, std::int64_t columns, std::int32_t* sums, std::int64_t stride);

}  // namespace tessera::quant
