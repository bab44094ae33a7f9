#include "nn/ops/label_scores.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>

#include "base/head_rows.h"
#include "nn/kernels/row_kernels.h"
#include "nn/kernels/row_sums.h"
#include "nn/ops/column_sums.h"
#include "nn/ops/gemm.h"
#include "nn/ops/rows.h"
#include "nn/ops/token_log_probs.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

/// A row's classes so far. Its label is not among them where a sum times p - 1 would lose the digits of a p close to 1.
struct RowSums {
  static constexpr float kNone = std::numeric_limits<float>::lowest();

  float top = kNone;         // the largest logit, without the label's
  double sum = 0;            // of exp(logit - top), without the label
  double weighted = 0;       // of exp(logit - top) * logit, without the label
  double squares = 0;        // of exp(logit - top)^2, without the label
  float label = kNone;       // its logit
  float label_slope = 1;     // of softcap there
  double logits = 0;         // the sum of all
  float best = kNone;        // the largest of all
  std::int64_t best_at = 0;  // its class

  /// Sums relative to a larger logit; returns what they are multiplied by.
  float raise(float to) {
    if (!(to > top)) return 1;
    const float shrink = std::exp(top - to);
    top = to;
    sum *= shrink, weighted *= shrink, squares *= shrink * shrink;
    return shrink;
  }
  /// The logarithm of the sum of all exponentials.
  double total() const {
    if (!(sum > 0)) return label + sum;  // no other class; or NaN
    const double others = top + std::log(sum), high = std::max<double>(others, label);
    return high + std::log(std::exp(others - high) + std::exp(label - high));
  }
};

/// Some rows against all classes.
class RowBlock {
 public:
  /// first: the rows' place among all.
  RowBlock(const at::Tensor& hidden, std::int64_t first, const LogitHead& head, const std::int64_t* labels,
           const LabelScoreOptions& options)
      : hidden_(hidden),
        rows_(hidden.size(0)),
        dim_(hidden.size(1)),
        first_(first),
        head_(head),
        labels_(labels),
        options_(options),
        sums_(rows_),
        shrink_(rows_, 1.0f) {
    if (options.gradients.hidden.defined()) expected_ = at::zeros(hidden.sizes(), hidden.options().dtype(at::kFloat));
  }

  /// A chunk's logits, [rows, as many classes as `weight` has rows], the first of which is `first`. The hidden states'
  /// gradient is made of them, too; they become something else.
  void take_once(std::int64_t first, const at::Tensor& logits, const at::Tensor& weight) {
    const std::int64_t n = logits.size(1);
    each_row(logits, [&](std::int64_t r, float* x, float* finished) {
      const std::int64_t label = take(r, first, x, n);
      auto& row = sums_[r];
      const bool copies = options_.statistics || head_.softcap > 0;
      if (copies) std::copy(x, x + n, finished);
      row.sum += kernels::exponentials(x, x, 1.0f, row.top, n);
      if (copies && label >= 0) finished[label] = 0;
      if (options_.statistics) row.weighted += kernels::dot(x, finished, n), row.squares += kernels::dot(x, x, n);
      if (head_.softcap > 0) kernels::softcap_backward(finished, x, head_.softcap, n);
      return expected_.defined();
    });
    if (!expected_.defined()) return;
    if (!of_labels_.defined()) of_labels_ = at::empty_like(hidden_);
    const auto rows = of_labels_.element_size() * dim_;
    for (std::int64_t r = 0; r < rows_; ++r) {
      if (const auto label = label_in(r, first, n); label >= 0)
        std::memcpy(static_cast<std::byte*>(of_labels_.mutable_data_ptr()) + r * rows,
                    static_cast<const std::byte*>(weight.const_data_ptr()) + label * rows, rows);
    }
    add_expected(logits, weight);
  }

  /// The same for sums alone, which leaves the logits as they are.
  void take_sums(std::int64_t first, const at::Tensor& logits) {
    const std::int64_t n = logits.size(1);
    each_row(logits, [&](std::int64_t r, float* given, float* x) {
      std::copy(given, given + n, x);
      take(r, first, x, n);
      sums_[r].sum += kernels::sum_of_exponentials(x, 1.0f, sums_[r].top, n);
      return false;
    });
  }

  /// After all chunks.
  void finish(LabelScores& out) {
    auto* scores = out.scores.mutable_data_ptr<float>() + first_;
    totals_.resize(rows_), factors_.resize(rows_);
    shrink_.assign(rows_, 1.0f);  // in a second pass
    for (std::int64_t r = 0; r < rows_; ++r) {
      const auto& row = sums_[r];
      const bool counts = labels_[r] >= 0;
      totals_[r] = row.total();
      const double mean = options_.label_smoothing * (row.label - row.logits / classes());
      scores[r] = counts ? static_cast<float>(row.label - totals_[r] - mean) : 0.0f;
      if (options_.gradients.any()) factors_[r] = counts ? options_.factor(first_ + r, scores[r]) : 0.0f;
      if (options_.predictions) out.predictions[first_ + r] = row.best_at;
      if (options_.statistics)
        write_statistics(r, out.statistics.mutable_data_ptr<float>() + (first_ + r) * kTokenStatistics);
    }
  }

  /// After finish(), the gradient of the hidden states from what take_once() saw.
  void write_gradient() const {
    if (!expected_.defined()) return;
    for_rows(rows_, dim_, [&](std::int64_t begin, std::int64_t end) {
      ReadRow of_label(of_labels_, dim_);
      WriteRow gradient(options_.gradients.hidden, dim_);
      for (std::int64_t r = begin; r < end; ++r) {
        const auto& row = sums_[r];
        const double factor = static_cast<double>(factors_[r]) * head_.scale * std::exp(row.top - totals_[r]);
        const auto of_others = static_cast<float>(-factor),
                   of_own = static_cast<float>(factor * row.sum * row.label_slope);
        const auto* sum = expected_.const_data_ptr<float>() + r * dim_;
        float* g = gradient.at((first_ + r) * dim_);
        if (labels_[r] < 0) {
          std::fill_n(g, dim_, 0.0f);
        } else {
          const auto* own = of_label.at(r * dim_);
          for (std::int64_t i = 0; i < dim_; ++i) g[i] = of_others * sum[i] + of_own * own[i];
        }
        gradient.store();
      }
    });
  }

  /// After finish(), a chunk's logits become their gradients, of which the others are made. is_first: no other block's
  /// have been added to these.
  void add_gradients(std::int64_t first, const at::Tensor& logits, const at::Tensor& weight, bool is_first) {
    const std::int64_t n = logits.size(1);
    each_row(logits, [&](std::int64_t r, float* x, float* finished) {
      if (labels_[r] < 0) {
        std::fill_n(x, n, 0.0f);
        return true;
      }
      const auto factor = factors_[r], smoothing = static_cast<float>(options_.label_smoothing);
      finish_logits(first, x, n);
      if (head_.softcap > 0) std::copy(x, x + n, finished);
      kernels::scaled_softmax(x, static_cast<float>(totals_[r]), -factor, n);
      if (const auto label = label_in(r, first, n); label >= 0) x[label] += factor * (1 - smoothing);
      if (smoothing > 0) {
        const auto of_each = static_cast<float>(factor * smoothing / classes());
        for (std::int64_t i = 0; i < n; ++i) x[i] += of_each;
      }
      if (head_.softcap > 0) kernels::softcap_backward(finished, x, head_.softcap, n);
      if (head_.scale != 1.0f) kernels::scale_row(x, head_.scale, n);
      return true;
    });
    const auto& gradients = options_.gradients;
    if (expected_.defined()) add_expected(logits, weight);
    if (gradients.weight)
      is_first ? gradients.weight->set(first, logits, hidden_) : gradients.weight->add(first, logits, hidden_);
    if (gradients.bias.defined()) gradients.bias.narrow(0, first, n).add_(unrounded_column_sums(logits));
  }

  /// After all of add_gradients().
  void write_sums() const {
    if (expected_.defined()) options_.gradients.hidden.narrow(0, first_, rows_).copy_(expected_);
  }

 private:
  double classes() const { return static_cast<double>(head_.weight.out_features()); }
  /// The label's place in a chunk of n classes; negative: it is in another.
  std::int64_t label_in(std::int64_t r, std::int64_t first, std::int64_t n) const {
    return labels_[r] >= first && labels_[r] < first + n ? labels_[r] - first : -1;
  }

  /// work(row, its numbers in float32, memory for as many) for each row of x; what returns true is stored.
  template <class Work>
  void each_row(const at::Tensor& x, const Work& work) const {
    const std::int64_t n = x.size(1);
    for_rows(rows_, n, [&](std::int64_t begin, std::int64_t end) {
      WriteRow out(x, n);
      std::vector<float> memory(n);
      for (std::int64_t r = begin; r < end; ++r)
        if (work(r, out.load(r * n, n), memory.data())) out.store();
    });
  }

  void finish_logits(std::int64_t first, float* x, std::int64_t n) const {
    if (head_.bias.defined()) kernels::add(x, head_.bias.const_data_ptr<float>() + first, x, n);
    if (head_.scale != 1.0f) kernels::scale_row(x, head_.scale, n);
    if (head_.softcap > 0) kernels::softcap(x, head_.softcap, n);
  }

  /// A chunk of a row's products become logits, and all of the row but what needs exponentials is brought up to date.
  /// Returns label_in(); the label's logit is taken out.
  std::int64_t take(std::int64_t r, std::int64_t first, float* x, std::int64_t n) {
    auto& row = sums_[r];
    finish_logits(first, x, n);
    if (options_.predictions || options_.statistics) {
      const float best = kernels::largest(x, n);
      if (best > row.best) row.best = best, row.best_at = first + (std::find(x, x + n, best) - x);
    }
    if (options_.statistics || options_.label_smoothing > 0) row.logits += kernels::sum(x, n);
    const std::int64_t label = label_in(r, first, n);
    if (label >= 0) {
      row.label = x[label];
      if (head_.softcap > 0) row.label_slope = 1 - (row.label / head_.softcap) * (row.label / head_.softcap);
      x[label] = RowSums::kNone;  // whose exponential is 0
    }
    shrink_[r] = row.raise(kernels::largest(x, n));
    return label;
  }

  /// The rows' sums become smaller as their exponentials did, and g W is added.
  void add_expected(const at::Tensor& g, const at::Tensor& weight) {
    const bool in_place = g.scalar_type() == at::kFloat;
    const auto product = in_place ? at::Tensor() : gemm(g, weight);
    for_rows(rows_, dim_, [&](std::int64_t begin, std::int64_t end) {
      ReadRow added(product, dim_);
      for (std::int64_t r = begin; r < end; ++r) {
        auto* sum = expected_.mutable_data_ptr<float>() + r * dim_;
        if (shrink_[r] != 1) kernels::scale_row(sum, shrink_[r], dim_);
        if (!in_place) kernels::add(sum, added.at(r * dim_), sum, dim_);
      }
    });
    if (in_place) gemm_add(expected_, g, weight);
  }

  void write_statistics(std::int64_t r, float* out) const {
    std::fill_n(out, kTokenStatistics, 0.0f);
    if (labels_[r] < 0) return;
    const auto& row = sums_[r];
    const double others = std::exp(row.top - totals_[r]), p = std::exp(row.label - totals_[r]);
    const auto write = [&](TokenStatistic which, double value) {
      out[static_cast<int>(which)] = static_cast<float>(value);
    };
    write(TokenStatistic::kEntropy, totals_[r] - others * row.weighted - p * row.label);
    write(TokenStatistic::kMeanLogit, row.logits / classes());
    write(TokenStatistic::kSumSquare, std::log(others * others * row.squares + p * p));
    write(TokenStatistic::kIsTop, row.best_at == labels_[r] ? 1 : 0);
  }

  const at::Tensor hidden_;
  const std::int64_t rows_, dim_, first_;
  const LogitHead& head_;
  const std::int64_t* labels_;
  const LabelScoreOptions& options_;
  std::vector<RowSums> sums_;
  std::vector<float> shrink_;  // what the last chunk's exponentials made of those before
  at::Tensor of_labels_;       // [rows, dim]: their weights
  at::Tensor expected_;        // [rows, dim] float32, a sum over classes of what a class's weight is multiplied by
  std::vector<double> totals_;
  std::vector<float> factors_;
};

/// labels: negative ones count for nothing.
void check_labels(const at::Tensor& labels, std::int64_t classes) {
  const auto* label = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.numel(); ++i)
    if (label[i] >= classes)
      throw DataError("label " + std::to_string(label[i]) + " is outside the output head's " + std::to_string(classes) +
                      " classes; the tokenizer does not belong to this model");
}

/// work(first, weight) for each chunk of classes.
template <class Work>
void for_chunks(const Weight& weight, at::ScalarType dtype, const Work& work) {
  const std::int64_t classes = weight.out_features();
  for (std::int64_t first = 0; first < classes; first += kClassesAtOnce)
    work(first, weight.dequantised_rows(first, std::min(kClassesAtOnce, classes - first), dtype).contiguous());
}

/// Logits of some rows, chunk after chunk, between the two passes: where the weight's gradient will be, or in memory of
/// its own.
class KeptLogits {
 public:
  KeptLogits(HeadGradient& room, const at::Tensor& hidden) : room_(&room), hidden_(hidden) {}
  KeptLogits(const at::Tensor& hidden, std::int64_t classes)
      : hidden_(hidden), own_(at::empty({hidden.size(0) * classes}, hidden.options().requires_grad(false))) {}

  /// [rows, classes of the chunk].
  at::Tensor of(std::int64_t first, std::int64_t classes) const {
    const std::int64_t rows = hidden_.size(0);
    if (room_) return room_->room(first, classes, rows, hidden_.scalar_type());
    return own_.narrow(0, first * rows, classes * rows).view({rows, classes});
  }
  /// The same, which stays while the gradient is set.
  at::Tensor taken(std::int64_t first, std::int64_t classes) const {
    return room_ ? of(first, classes).clone() : of(first, classes);
  }

 private:
  HeadGradient* room_ = nullptr;
  const at::Tensor& hidden_;
  at::Tensor own_;
};

}  // namespace

LabelScores label_scores(const at::Tensor& given_hidden, LogitHead head, const at::Tensor& labels,
                         const LabelScoreOptions& options) {
  const auto dtype = head.weight.compute_dtype(given_hidden.scalar_type());
  const auto hidden = given_hidden.to(dtype);
  const std::int64_t rows = hidden.size(0), dim = hidden.size(1), classes = head.weight.out_features();
  check_labels(labels, classes);
  if (head.bias.defined()) head.bias = head.bias.to(at::kFloat).contiguous();
  const auto floats = hidden.options().dtype(at::kFloat).requires_grad(false);
  LabelScores out;
  out.scores = at::empty({rows}, floats);
  if (options.predictions) out.predictions.resize(rows);
  if (options.statistics) out.statistics = at::empty({rows, kTokenStatistics}, floats);

  const auto& gradients = options.gradients;
  const bool two_passes =
      gradients.weight || gradients.bias.defined() || (gradients.hidden.defined() && options.label_smoothing > 0);
  if (gradients.weight && rows == 0) gradients.weight->value().zero_();  // the other ranks have a gradient, too
  const std::int64_t room = gradients.weight ? gradients.weight->rows_of_room(dtype) : 0;
  for (std::int64_t begin = 0, count = 0; begin < rows; begin += count) {
    const bool has_room = begin == 0 && room > 0;
    const std::int64_t most = !two_passes ? rows_in_one_pass(dim)
                              : has_room  ? room
                                          : rows_of_a_piece(dim, classes, hidden.element_size());
    count = std::min(most, rows - begin);
    const auto h = hidden.narrow(0, begin, count);
    RowBlock block(h, begin, head, labels.const_data_ptr<std::int64_t>() + begin, options);
    if (!two_passes) {
      for_chunks(head.weight, dtype,
                 [&](std::int64_t first, const at::Tensor& w) { block.take_once(first, gemm(h, w.t()), w); });
      block.finish(out);
      block.write_gradient();
      continue;
    }
    const auto kept = has_room ? KeptLogits(*gradients.weight, h) : KeptLogits(h, classes);
    for_chunks(head.weight, dtype, [&](std::int64_t first, const at::Tensor& w) {
      const auto logits = kept.of(first, w.size(0));
      gemm_to(logits, h, w.t());
      block.take_sums(first, logits);
    });
    block.finish(out);
    for_chunks(head.weight, dtype, [&](std::int64_t first, const at::Tensor& w) {
      block.add_gradients(first, kept.taken(first, w.size(0)), w, begin == 0);
    });
    block.write_sums();
  }
  return out;
}

}  // namespace tessera::nn
