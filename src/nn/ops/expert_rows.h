#pragma once
// Rows of tokens on their way to an expert of a mixture and back.
#include <ATen/core/Tensor.h>

namespace tessera::nn {

struct TakenRows {
  at::Tensor rows;  // [N, D]
  at::Tensor rest;  // x again, for one more call
};
/// Rows `tokens` (int64 [N], each at most once) of x [T, D]. Backward adds their gradient to that of `rest` in place:
/// with a call for each expert, on the `rest` of the one before, all experts' gradients go into one tensor, those of
/// the last call first.
TakenRows take_rows(const at::Tensor& x, const at::Tensor& tokens);

/// out [T, D], in place, with weights[i] * y[i] added to row tokens[i]; to row i where tokens are undefined. y: [N, D],
/// weights: [N], of out's dtype; products are rounded to it before they are added.
at::Tensor add_weighted_rows(const at::Tensor& out, const at::Tensor& y, const at::Tensor& weights,
                             const at::Tensor& tokens);

}  // namespace tessera::nn
