#pragma once
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "support/compare.h"

namespace tessera::nn {

using Inputs = std::vector<at::Tensor>;

/// The bias of attention() for each query and key of a sequence, [H, m, n]. longest: the most queries of a sequence.
inline at::Tensor bias_of_pairs(const at::Tensor& bias, std::int64_t longest, std::int64_t m, std::int64_t n) {
  std::vector<at::Tensor> rows;
  for (std::int64_t i = 0; i < m; ++i) rows.push_back(bias.narrow(1, longest - 1 - i, n));
  return torch::stack(rows, 1);
}

/// Value and gradients of both functions for the same inputs and the same output gradient.
template <class Fused, class Composite>
void expect_same(const Inputs& inputs, const Fused& fused, const Composite& composite, double tolerance) {
  const auto run = [&](const auto& f) {
    Inputs leaves;
    for (const auto& t : inputs) leaves.push_back(t.detach().clone().set_requires_grad(true));
    const auto y = f(leaves);
    torch::manual_seed(3);
    y.backward(torch::randn(y.sizes()).to(y.scalar_type()));
    Inputs out{y.detach()};
    for (const auto& leaf : leaves) out.push_back(leaf.grad());
    return out;
  };
  const auto a = run(fused), b = run(composite);
  for (std::size_t i = 0; i < a.size(); ++i) {
    test::expect_close(a[i], b[i], tolerance, i == 0 ? "value" : "gradient of input " + std::to_string(i - 1));
  }
}

}  // namespace tessera::nn
