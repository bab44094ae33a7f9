#include "preference/completions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "nn/ops/token_log_probs.h"

namespace tessera::preference {
namespace {

/// [R, T - 1], at t of the token t + 1.
at::Tensor without_last(const at::Tensor& t) {
  return t.narrow(1, 0, t.size(1) - 1).to(at::kDouble);
}
at::Tensor without_first(const at::Tensor& t) {
  return t.narrow(1, 1, t.size(1) - 1).to(at::kDouble);
}

at::Tensor token_weights(const at::Tensor& completion, std::optional<double> ld_alpha) {
  if (!ld_alpha) return completion;
  const auto half = completion.size(0) / 2;
  const auto lengths = completion.sum(1);
  const auto shared = at::minimum(lengths.narrow(0, 0, half), lengths.narrow(0, half, half)).repeat({2}).unsqueeze(1);
  const auto places = completion.cumsum(1);
  return completion * at::where(places.le(shared), at::ones_like(completion), at::ones_like(completion) * *ld_alpha);
}

}  // namespace

at::Tensor logps_of(const TokenTable& tokens, std::int64_t sides, std::optional<double> ld_alpha) {
  const auto weights = token_weights(without_first(tokens.completion), ld_alpha);
  return (without_last(tokens.logps) * weights).sum(1).view({sides, -1});
}

at::Tensor table_of(const TokenTable& tokens, std::int64_t sides, std::optional<double> ld_alpha) {
  const auto logps = without_last(tokens.logps);
  const auto completion = without_first(tokens.completion);
  const auto labelled = without_first(tokens.labelled);
  const auto rows = tokens.logps.size(0);
  const auto zeros = at::zeros({rows}, logps.options().requires_grad(false));
  std::vector<at::Tensor> columns(kColumns, zeros);
  const auto set = [&](Column column, const at::Tensor& values) {
    columns[static_cast<std::size_t>(column)] = values.to(at::kDouble);
  };
  set(Column::kLogps, logps_of(tokens, sides, ld_alpha).view({-1}));
  set(Column::kTokenLogps, (logps * completion).sum(1));
  set(Column::kAllLogps, (logps * labelled).sum(1));
  set(Column::kAllTokens, labelled.sum(1));
  set(Column::kPredicted, completion.sum(1));
  set(Column::kTokens, tokens.completion.sum(1));
  if (tokens.statistics.defined()) {
    const auto sum = [&](nn::TokenStatistic which) {
      return (without_last(tokens.statistics.select(2, static_cast<std::int64_t>(which))) * completion).sum(1);
    };
    const auto count = completion.sum(1).clamp_min(1);
    const auto own = (logps.detach() * completion).sum(1);
    set(Column::kAgreement, ((own - sum(nn::TokenStatistic::kSumSquare)) / count).exp());
    set(Column::kEntropy, sum(nn::TokenStatistic::kEntropy));
    set(Column::kLogits, sum(nn::TokenStatistic::kMeanLogit));
    set(Column::kTop, sum(nn::TokenStatistic::kIsTop));
  }
  return at::stack(columns).view({kColumns, sides, -1});
}

}  // namespace tessera::preference
