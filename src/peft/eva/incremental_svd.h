#pragma once
// The principal components of rows that come in batches: scikit-learn's IncrementalPCA (Ross et al. 2008) as PEFT has
// it, with torch.svd_lowrank and its seed, so that the numbers are PEFT's.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::peft {

class IncrementalSvd {
 public:
  explicit IncrementalSvd(std::int64_t count) : count_(count) {}

  /// rows: [n, features], n and features at least the number of components.
  void add(const at::Tensor& rows);

  bool empty() const { return !components_.defined(); }
  const at::Tensor& components() const { return components_; }            // [count, features], orthonormal
  const at::Tensor& singular_values() const { return singular_values_; }  // [count]
  /// What each component explains of the variance, [count].
  const at::Tensor& shares() const { return shares_; }

 private:
  /// The rows without their mean, what is known already before them and what the mean has moved behind them.
  at::Tensor with_known(const at::Tensor& rows, const at::Tensor& mean) const;

  std::int64_t count_;
  double seen_ = 0;               // rows
  at::Tensor mean_, deviations_;  // [features] float64; squares, summed over all rows
  at::Tensor components_, singular_values_, shares_;
};

}  // namespace tessera::peft
