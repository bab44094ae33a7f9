#pragma once
// Log-probabilities of tokens that stay differentiable, without stored logits.
#include <ATen/core/Tensor.h>

#include "nn/ops/lookup.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

/// Columns of TokenScores::statistics.
enum class TokenStatistic {
  kEntropy,    // -sum_v p_v log p_v
  kMeanLogit,  // over the classes
  kSumSquare,  // log sum_v p_v^2
  kIsTop,      // 1 where the label has the largest logit, else 0
};
constexpr std::int64_t kTokenStatistics = 4;

struct TokenScores {
  at::Tensor logps;       // [rows] float32; 0 where the label is negative
  at::Tensor statistics;  // [rows, kTokenStatistics] float32, without gradient; undefined unless wanted
};

struct TokenScoreOptions {
  double scale = 1.0;  // of the logits
  double softcap = 0;  // logits become softcap * tanh(logit / softcap), after `scale`; 0: as they are
  bool statistics = false;
  GradientSlot weight_gradient = {};  // receives the weight's gradient in backward instead of autograd
};

/// log softmax(scale * hidden W^T)[label] of every row. hidden: [rows, dim], weight: [classes, dim], labels: [rows]
/// int64. Logits are not stored (label_scores.h). A frozen weight's backward only scales rows that the forward made; a
/// trained one's makes the logits again, since its gradient weighs each row by what comes from above. Statistics in
/// float32. Not on the CPU logits are stored, and weight_gradient stays empty.
TokenScores token_log_probs(const at::Tensor& hidden, const Weight& weight, const at::Tensor& labels,
                            const TokenScoreOptions& options);

/// The same of logits that are there: [rows, classes].
TokenScores token_log_probs_of(const at::Tensor& logits, const at::Tensor& labels, bool statistics);

}  // namespace tessera::nn
