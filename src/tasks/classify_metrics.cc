#include "tasks/classify_metrics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "chat/jinja/repr.h"
#include "chat/jinja/value.h"

namespace tessera::tasks {
namespace {

using families::ProblemType;

enum Sum : std::size_t { kRows, kX, kY, kXX, kYY, kXY, kSquares, kDistances, kSums };

double part(double of, double all) {
  return all > 0 ? of / all : 0;
}

double f1_of(double true_positive, double chosen, double support) {
  return part(2 * true_positive, chosen + support);
}

double correlation(double cov, double var_x, double var_y) {
  return part(cov, std::sqrt(std::max(0.0, var_x) * std::max(0.0, var_y)));
}

/// 1, 2, ... in the order of the values; equal ones share the mean of their ranks.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (auto i = begin; i < end; ++i) out[order[i]] = static_cast<double>(begin + end + 1) / 2;
  }
  return out;
}

/// Pearson's correlation of the ranks.
double spearman(const std::vector<std::array<double, 2>>& pairs) {
  std::vector<double> x, y;
  for (const auto& [predicted, expected] : pairs) {
    if (std::isnan(predicted)) return predicted;
    x.push_back(predicted);
    y.push_back(expected);
  }
  x = ranks(x);
  y = ranks(y);
  const double mean = static_cast<double>(pairs.size() + 1) / 2;
  double cov = 0, of_x = 0, of_y = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    cov += (x[i] - mean) * (y[i] - mean);
    of_x += (x[i] - mean) * (x[i] - mean);
    of_y += (y[i] - mean) * (y[i] - mean);
  }
  return correlation(cov, of_x, of_y);
}

train::Metrics with_mean(train::Metrics two) {
  two.emplace_back("eval_combined_score", (two[0].second + two[1].second) / 2);
  return two;
}

}  // namespace

ClassCounts::ClassCounts(ProblemType problem, std::int64_t labels, ClassMeasures measures)
    : problem_(problem), labels_(labels), measures_(measures) {
  values_.resize(problem == ProblemType::kRegression ? std::size_t{kSums} : static_cast<std::size_t>(3 * labels + 2));
}

void ClassCounts::add(const at::Tensor& logits, const at::Tensor& expected) {
  const auto scores = logits.to(at::kCPU, at::kDouble);
  if (problem_ == ProblemType::kRegression) {
    const auto x = scores.flatten(), y = expected.to(at::kDouble).flatten(), d = x - y;
    const double sums[] = {static_cast<double>(x.numel()), x.sum().item<double>(),       y.sum().item<double>(),
                           (x * x).sum().item<double>(),   (y * y).sum().item<double>(), (x * y).sum().item<double>(),
                           (d * d).sum().item<double>(),   d.abs().sum().item<double>()};
    for (std::size_t i = 0; i < kSums; ++i) values_[i] += sums[i];
    if (measures_ == ClassMeasures::kCorrelations)
      for (std::int64_t i = 0; i < x.numel(); ++i) pairs_.push_back({x[i].item<double>(), y[i].item<double>()});
    return;
  }
  const auto truth =
      problem_ == ProblemType::kSingleLabel ? at::one_hot(expected.flatten(), labels_) : expected.to(at::kLong);
  const auto chosen = problem_ == ProblemType::kSingleLabel ? at::one_hot(scores.argmax(-1), labels_)
                                                            : scores.gt(0).to(at::kLong);  // a probability above 1/2
  const auto add_columns = [&](const at::Tensor& counts, std::int64_t first) {
    for (std::int64_t c = 0; c < labels_; ++c)
      values_[static_cast<std::size_t>(first + c)] += static_cast<double>(counts[c].item<std::int64_t>());
  };
  add_columns((truth * chosen).sum(0), 0);
  add_columns(chosen.sum(0), labels_);
  add_columns(truth.sum(0), 2 * labels_);
  values_[static_cast<std::size_t>(3 * labels_)] += static_cast<double>(truth.size(0));
  values_[static_cast<std::size_t>(3 * labels_ + 1)] +=
      static_cast<double>(truth.eq(chosen).all(1).sum().item<std::int64_t>());
}

double ClassCounts::f1(std::int64_t c) const {
  return f1_of(true_positive(c), chosen(c), support(c));
}

double ClassCounts::accuracy() const {
  return part(values_[static_cast<std::size_t>(3 * labels_ + 1)], values_[static_cast<std::size_t>(3 * labels_)]);
}

/// Of any number of classes, as scikit-learn's matthews_corrcoef.
double ClassCounts::matthews() const {
  const double rows = values_[static_cast<std::size_t>(3 * labels_)],
               right = values_[static_cast<std::size_t>(3 * labels_ + 1)];
  double cov = right * rows, of_chosen = rows * rows, of_truth = rows * rows;
  for (std::int64_t c = 0; c < labels_; ++c) {
    cov -= chosen(c) * support(c);
    of_chosen -= chosen(c) * chosen(c);
    of_truth -= support(c) * support(c);
  }
  return correlation(cov, of_chosen, of_truth);
}

double ClassCounts::pearson() const {
  const auto& v = values_;
  const double n = v[kRows];
  return correlation(v[kXY] - part(v[kX] * v[kY], n), v[kXX] - part(v[kX] * v[kX], n), v[kYY] - part(v[kY] * v[kY], n));
}

train::Metrics ClassCounts::metrics() const {
  switch (measures_) {
    case ClassMeasures::kAccuracy:
      return {{"eval_accuracy", accuracy()}};
    case ClassMeasures::kAccuracyAndF1:
      return with_mean({{"eval_accuracy", accuracy()}, {"eval_f1", f1(1)}});
    case ClassMeasures::kMatthews:
      return {{"eval_matthews_correlation", matthews()}};
    case ClassMeasures::kCorrelations:
      return with_mean({{"eval_pearson", pearson()}, {"eval_spearmanr", spearman(pairs_)}});
    default:
      return metrics_of_problem();
  }
}

train::Metrics ClassCounts::metrics_of_problem() const {
  if (problem_ == ProblemType::kRegression) {
    const double n = values_[kRows];
    return {{"eval_mse", part(values_[kSquares], n)},
            {"eval_mae", part(values_[kDistances], n)},
            {"eval_pearson", pearson()}};
  }
  double macro = 0, positives = 0, all_chosen = 0, all_support = 0, classes = 0;
  for (std::int64_t c = 0; c < labels_; ++c) {
    positives += true_positive(c);
    all_chosen += chosen(c);
    all_support += support(c);
    // As scikit-learn: of one label, classes that neither occur nor are chosen do not count.
    if (problem_ == ProblemType::kSingleLabel && chosen(c) + support(c) == 0) continue;
    macro += f1(c);
    ++classes;
  }
  if (problem_ == ProblemType::kSingleLabel) return {{"eval_accuracy", accuracy()}, {"eval_f1", part(macro, classes)}};
  return {{"eval_f1", f1_of(positives, all_chosen, all_support)},
          {"eval_f1_macro", part(macro, classes)},
          {"eval_accuracy", accuracy()}};
}

nlohmann::ordered_json ClassCounts::by_class(const std::vector<std::string>& names) const {
  auto out = nlohmann::ordered_json::array();
  if (problem_ == ProblemType::kRegression) return out;
  for (std::int64_t c = 0; c < labels_; ++c)
    out.push_back({{"class", names.at(static_cast<std::size_t>(c))},
                   {"precision", part(true_positive(c), chosen(c))},
                   {"recall", part(true_positive(c), support(c))},
                   {"f1", f1(c)},
                   {"support", support(c)}});
  return out;
}

std::string predicted_text(ProblemType problem, const at::Tensor& logits, const std::vector<std::string>& names) {
  const auto scores = logits.to(at::kCPU, at::kDouble).flatten();
  if (problem == ProblemType::kRegression) return fmt::format("{:.3f}", scores[0].item<double>());
  if (problem == ProblemType::kSingleLabel)
    return names.at(static_cast<std::size_t>(scores.argmax().item<std::int64_t>()));
  std::vector<chat::Value> holding;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (scores[static_cast<std::int64_t>(i)].item<double>() > 0) holding.push_back(names[i]);
  return chat::repr(chat::make_list(std::move(holding)));
}

std::vector<std::string> names_of_class_metrics(ProblemType problem, ClassMeasures measures) {
  std::vector<std::string> names = {"eval_loss"};
  for (const auto& [name, value] : ClassCounts(problem, 2, measures).metrics()) names.push_back(name);
  names.insert(names.end(), {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"});
  return names;
}

std::string class_table(const nlohmann::ordered_json& by_class) {
  std::size_t width = 12;
  for (const auto& row : by_class) width = std::max(width, row["class"].get_ref<const std::string&>().size());
  auto text = fmt::format("{:>{}}  precision  recall  f1-score  support\n", "", width);
  for (const auto& row : by_class)
    text += fmt::format("{:>{}}  {:9.2f}  {:6.2f}  {:8.2f}  {:7.0f}\n", row["class"].get_ref<const std::string&>(),
                        width, row["precision"].get<double>(), row["recall"].get<double>(), row["f1"].get<double>(),
                        row["support"].get<double>());
  return text;
}

}  // namespace tessera::tasks
