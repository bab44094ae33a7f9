#pragma once
// Rows of tokens on their way to the experts of a mixture and back.
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

/// Rows of the tokens as their experts take them, one expert's behind another's, where no expert is computed by itself.
/// K: experts of a token; N: T * K. With `one_more` each expert has one row more, whose result no token takes (see
/// grouped_linear()).
struct ExpertRows {
  at::Tensor tokens;   // int64 [N]: the token of each row
  at::Tensor experts;  // int64 [N]: its expert, ascending
  at::Tensor places;   // int64 [T, K]: where a token's rows lie
  at::Tensor ends;     // int32 [experts]: where each expert's rows end
};
/// The draws of this thread's stream that belong to one expert's call; the next expert's come behind them.
inline constexpr std::uint64_t kDrawsOfExpert = 8;  // at most: one for each projection's adapter

/// chosen: int64 [T, K], the experts of each token. Nothing waits for the device.
ExpertRows expert_rows(const at::Tensor& chosen, std::int64_t experts, bool one_more);
/// Row tokens[i] of x [T, D] for each i: [N, D].
at::Tensor spread_rows(const at::Tensor& x, const ExpertRows& rows);
/// The sum over k of weights[t, k] * y[places[t, k]]: [T, D]. y: [N, D]; weights: [T, K], of its dtype; products are
/// rounded to it, sums are float32 and rounded once.
at::Tensor weighted_sums(const at::Tensor& y, const at::Tensor& weights, const ExpertRows& rows);

}  // namespace tessera::nn
