#pragma once
// Small matrix products of bfloat16 (as its bits) with sums in float32, for operands that stay in the cache, by the
// dot-product instruction VDPBF16PS: it multiplies pairs along the inner dimension. The right operand is packed in the
// VNNI layout: word (p, n) of [K / 2, N] holds b[2 p, n] in its low half and b[2 p + 1, n] in its high half. N is a
// multiple of 16.
#include <cstdint>

namespace tessera::nn::kernels {

/// This processor has the instructions (AVX512_BF16); without them nothing else here may be called.
bool has_bf16_dot();

constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// The number of columns of a packed operand: n rounded up.
constexpr std::int64_t vnni_columns(std::int64_t n) {
  return rounded_up(n, 16);
}

/// Where rows of a packed operand that is read down its columns should begin: an odd number of cache lines apart, so
/// that they don't share a place in the first cache.
constexpr std::int64_t vnni_stride(std::int64_t n) {
  return (n + 15) / 16 % 2 == 0 ? vnni_columns(n) + 16 : vnni_columns(n);
}

/// Packs x [k, n], k perhaps odd: [(k + 1) / 2, vnni_columns(n)] words, zeros after n, rows out_stride apart.
void pack_vnni(const std::uint16_t* x, std::int64_t stride, std::int64_t k, std::int64_t n, std::uint32_t* out,
               std::int64_t out_stride);
/// Packs the transpose of x [n, k], k even: [k / 2, vnni_columns(n)] words likewise.
void pack_vnni_transposed(const std::uint16_t* x, std::int64_t stride, std::int64_t n, std::int64_t k,
                          std::uint32_t* out, std::int64_t out_stride);
/// A row of float32 to the nearest bfloat16; n a multiple of 16.
void narrow_row(const float* x, std::uint16_t* y, std::int64_t n);
/// Packs two rows of float32, to the nearest: n words, n a multiple of 16; and writes them as rows unless those are
/// null.
void narrow_to_vnni(const float* even, const float* odd, std::int64_t n, std::uint32_t* out, std::uint16_t* even_row,
                    std::uint16_t* odd_row);

/// The left operand: pair p of row m stands at at[m * row + p * pair].
struct DotRows {
  const std::uint16_t* at;
  std::int64_t row, pair;
};
/// The right operand, and the sums; rows `stride` apart.
struct VnniMatrix {
  const std::uint32_t* at;
  std::int64_t stride;
};
struct SumMatrix {
  float* at;
  std::int64_t stride;
};
struct DotSize {
  std::int64_t rows, columns, pairs;
};

/// c [rows, columns] = a b, or c += a b.
void multiply_vnni(const DotRows& a, const VnniMatrix& b, const SumMatrix& c, const DotSize& size, bool add);

}  // namespace tessera::nn::kernels
