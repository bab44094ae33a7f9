#pragma once
// What an evaluation of a classifier counts, and the measures that follow from it.
#include <ATen/core/Tensor.h>

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "families/classifier.h"
#include "train/presentation.h"

namespace tessera::tasks {

/// What is measured: as the kind of problem has it (ClassCounts::metrics()), or as a task of GLUE is.
enum class ClassMeasures {
  kOfProblem,
  kAccuracy,
  kAccuracyAndF1,  // F1 of class 1
  kMatthews,       // Matthews' correlation
  kCorrelations,   // Pearson's and Spearman's, of numbers
};

/// Counts of rows; those of several ranks add up, number by number.
class ClassCounts {
 public:
  /// problem: not kByLabels. labels: how many there are; 1 for a regression.
  ClassCounts(families::ProblemType problem, std::int64_t labels, ClassMeasures measures = ClassMeasures::kOfProblem);
  /// logits: [B, labels] float32; expected: [B] classes, [B, labels] 0 and 1, or [B] numbers.
  void add(const at::Tensor& logits, const at::Tensor& expected);
  std::vector<double>& values() { return values_; }
  /// Of kCorrelations: what was predicted and what expected of each row; those of the ranks stand one behind the other.
  std::vector<std::array<double, 2>>& pairs() { return pairs_; }

  /// Of a problem. Single label: eval_accuracy, eval_f1 (mean over the classes). Several: eval_f1 (of all decisions
  /// together), eval_f1_macro, eval_accuracy (rows that are right in all). A number: eval_mse, eval_mae, eval_pearson.
  /// As scikit-learn and scipy define them; a measure without rows is 0. As GLUE measures: eval_accuracy, eval_f1,
  /// eval_matthews_correlation, eval_pearson, eval_spearmanr; of two also eval_combined_score, their mean.
  train::Metrics metrics() const;
  /// precision, recall, f1 and support of each class; empty for a regression.
  nlohmann::ordered_json by_class(const std::vector<std::string>& names) const;

 private:
  double true_positive(std::int64_t c) const { return values_[static_cast<std::size_t>(c)]; }
  double chosen(std::int64_t c) const { return values_[static_cast<std::size_t>(labels_ + c)]; }
  double support(std::int64_t c) const { return values_[static_cast<std::size_t>(2 * labels_ + c)]; }
  double f1(std::int64_t c) const;
  double accuracy() const;
  double matthews() const;
  double pearson() const;
  train::Metrics metrics_of_problem() const;

  families::ProblemType problem_;
  std::int64_t labels_;
  ClassMeasures measures_;
  /// Classes: true positives, chosen, support of each, rows, rows that are right. Numbers: rows, sums of x, y, x x, y
  /// y, x y, (x - y)^2, |x - y|.
  std::vector<double> values_;
  std::vector<std::array<double, 2>> pairs_;
};

/// What the logits [labels] of a row say: the class, a list of those that hold (as Python prints it), or the number
/// with three digits.
std::string predicted_text(families::ProblemType problem, const at::Tensor& logits,
                           const std::vector<std::string>& names);

/// Of what an evaluation gives.
std::vector<std::string> names_of_class_metrics(families::ProblemType problem, ClassMeasures measures);

/// by_class() as scikit-learn prints it.
std::string class_table(const nlohmann::ordered_json& by_class);

}  // namespace tessera::tasks
