#pragma once
// Panels hold 64 tokens side by side, float32 [n, 64]: element i of all of them is row i. What is done to a row of
// numbers for each token is then done for vectors of tokens. Callers divide the work among threads.
#include <cstdint>

namespace tessera::nn::kernels {

constexpr std::int64_t kPanelTokens = 64;

/// Rows of `width` elements (bfloat16 as its bits), `stride` apart, at most kPanelTokens of them.
template <class T>
struct TokenRows {
  T* at;
  std::int64_t tokens, width, stride;
};

/// panel = rows^T; tokens that lack are 0.
void turn_to_panel(const TokenRows<const float>& rows, float* panel);
void turn_to_panel(const TokenRows<const std::uint16_t>& rows, float* panel);
/// rows += panel^T; of bfloat16 the sum is rounded.
void add_panel(const float* panel, const TokenRows<float>& rows);
void add_panel(const float* panel, const TokenRows<std::uint16_t>& rows);

/// The numbers of a sparse matrix, line by line: those of line i are k from begin[i] to begin[i + 1],
/// numbers[number[k]] at place other[k].
struct SparseLines {
  std::int64_t lines;
  const std::int64_t* begin;
  const std::int32_t *other, *number;
};
/// Rows first to last of y: row i = the sum over the line's numbers, each times row `other` of x.
void sparse_lines(const SparseLines& lines, std::int64_t first, std::int64_t last, const float* numbers, const float* x,
                  float* y);
/// sums[number[k]] += the product of row `other` of x and row i of y, for k from first to last.
void sparse_dots(const SparseLines& lines, std::int64_t first, std::int64_t last, const float* x, const float* y,
                 float* sums);

}  // namespace tessera::nn::kernels
