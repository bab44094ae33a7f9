#pragma once
// What the losses of preference training need to know of a batch's completions: one table of numbers, small enough that
// every rank can have that of the whole batch.
#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::preference {

/// Rows of a table. Sums are over the tokens of one completion.
enum class Column {
  kLogps,       // log-probabilities, differentiable; beyond the shorter completion's length weighed by ld_alpha
  kTokenLogps,  // the same, all tokens alike
  kAllLogps,    // the same over all tokens that have a label, the prompt's too
  kAllTokens,   // how many these are
  kPredicted,   // completion tokens that have a probability: not the first of a row without a prompt
  kTokens,      // completion tokens
  kAgreement,   // exp of the mean of (log p - log sum_v p_v^2), as WPO weighs pairs (Zhou et al. 2024)
  kEntropy,
  kLogits,  // the mean of the classes' logits
  kTop,     // tokens that have the largest logit
  kRefLogps,
  // Of unpaired rows:
  kLabel,    // 1 desirable, 0 undesirable
  kKlLogps,  // of a completion that belongs to another prompt
  kKlRefLogps,
  // Of pairs that a classifier scores:
  kReward,
  kMargin,
};
constexpr std::int64_t kColumns = 16;

/// [kColumns, sides, N] float64; sides: chosen and rejected, or 1 where rows are not paired.
class Completions {
 public:
  explicit Completions(at::Tensor table) : table_(std::move(table)) {}
  const at::Tensor& table() const { return table_; }
  std::int64_t size() const { return table_.size(2); }
  at::Tensor get(Column column, std::int64_t side = 0) const {
    return table_.select(0, static_cast<std::int64_t>(column)).select(0, side);
  }
  at::Tensor chosen(Column column) const { return get(column, 0); }
  at::Tensor rejected(Column column) const { return get(column, 1); }

 private:
  at::Tensor table_;
};

/// What a model says of the rows of a batch. Rows of pairs: all chosen ones, then the rejected.
struct TokenTable {
  at::Tensor logps;       // [R, T] float32, at t of the token t + 1 (models::ModelOutput::token_logps)
  at::Tensor statistics;  // [R, T, kTokenStatistics]; undefined: those columns are 0
  at::Tensor completion;  // [R, T] int64, 1 on completion tokens
  at::Tensor labelled;    // [R, T] int64, 1 on tokens whose log-probability was asked for
};

/// The first ten columns of the table of these rows, the others zeros: [kColumns, sides, R / sides]. ld_alpha: weight
/// of tokens behind the length of the pair's shorter completion (LD-DPO, Liu et al. 2024).
at::Tensor table_of(const TokenTable& tokens, std::int64_t sides, std::optional<double> ld_alpha);
/// Column kLogps alone, [sides, R / sides], of a reference.
at::Tensor logps_of(const TokenTable& tokens, std::int64_t sides, std::optional<double> ld_alpha);

}  // namespace tessera::preference
