#pragma once
// Small matrix products of bfloat16 (as its bits) with sums in float32, for operands that stay in the cache, by
// instructions that multiply pairs along the inner dimension. One operand is packed by pairs: word (p, n) of [K / 2, N]
// holds b[2 p, n] in its low half and b[2 p + 1, n] in its high half. N is a multiple of 16.
#include <cstdint>

namespace tessera::nn::kernels {

/// This processor has the instructions (AVX512_BF16); without them nothing else here may be called.
bool multiplies_bfloat16_pairs();

/// The number of columns of a packed operand: n rounded up.
constexpr std::int64_t pair_columns(std::int64_t n) {
  return (n + 15) / 16 * 16;
}

/// Where rows of a packed operand that is read down its columns should begin: an odd number of cache lines apart, so
/// that they don't share a place in the first cache.
constexpr std::int64_t pair_stride(std::int64_t n) {
  return (n + 15) / 16 % 2 == 0 ? pair_columns(n) + 16 : pair_columns(n);
}

/// Packs x [k, n], k perhaps odd: [(k + 1) / 2, pair_columns(n)] words, zeros after n, rows out_stride apart.
void pack_pairs(const std::uint16_t* x, std::int64_t stride, std::int64_t k, std::int64_t n, std::uint32_t* out,
                std::int64_t out_stride);
/// Packs the transpose of x [n, k], k even: [k / 2, pair_columns(n)] words likewise.
void pack_transposed_pairs(const std::uint16_t* x, std::int64_t stride, std::int64_t n, std::int64_t k,
                           std::uint32_t* out, std::int64_t out_stride);
/// A row of float32 to the nearest bfloat16; n a multiple of 16.
void narrow_row(const float* x, std::uint16_t* y, std::int64_t n);
/// Packs two rows of float32, to the nearest: n words, n a multiple of 16; and writes them as rows unless those are
/// null.
void narrow_pairs(const float* even, const float* odd, std::int64_t n, std::uint32_t* out, std::uint16_t* even_row,
                  std::uint16_t* odd_row);

/// The operand that is not packed: pair p of row m stands at at[m * row + p * pair].
struct PairRows {
  const std::uint16_t* at;
  std::int64_t row, pair;
};

/// c [rows, n] = a b, or c += a b, over `pairs` pairs. b, c: rows b_stride and c_stride apart.
void multiply_pairs(const PairRows& a, const std::uint32_t* b, std::int64_t b_stride, float* c, std::int64_t c_stride,
                    std::int64_t rows, std::int64_t n, std::int64_t pairs, bool add);

}  // namespace tessera::nn::kernels
