#pragma once
// A table of differences between what was computed and a reference.
#include <ATen/core/Tensor.h>

#include <iosfwd>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::verify {

class Comparison {
 public:
  /// Relative difference: max |actual - expected| / max |expected| over the tensor. Not a number, or another shape,
  /// fails.
  void add(const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double tolerance);
  void add(const std::string& name, double actual, double expected, double tolerance);
  /// Scores of tokens: those that are excluded are -inf on both sides.
  void add_scores(const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double tolerance);
  /// Weights after training: as many as 0.1% of the elements may differ by more than `tolerance` (absolute), none by
  /// more than `limit`. Elements whose gradient is rounding noise move by up to the learning rate in each step; where
  /// they are known (`noise`, bool, undefined: none) they do not count among the 0.1%.
  void add_weights(const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                   double limit, const at::Tensor& noise = {});
  /// A named failure (a parameter that the reference has and the model has not).
  void fail(const std::string& name, const std::string& why);
  /// A gradient or weight that the reference has not: fails, unless all of it is zero.
  void fail_unless_zero(const std::string& name, const at::Tensor& actual);
  /// Fails where the reference has more or fewer of them (losses of steps) than its settings make.
  void require_count(const std::string& name, std::size_t found, std::int64_t expected);

  /// Collective: keeps the worst of all ranks. Ranks must have added the same rows.
  void merge(comm::Communicator& group);
  bool passed() const;
  /// A line for each kind of row (the part of the name before the first space), with the worst of its rows, and every
  /// failure.
  void print(std::ostream& out) const;

 private:
  struct Row {
    std::string name;
    double difference = 0, tolerance = 0;
    std::string note;  // why it failed without a number
    bool ok() const;
  };
  std::vector<Row> rows_;
};

}  // namespace tessera::verify
