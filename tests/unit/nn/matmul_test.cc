// Products with autograd: values and gradients of every form beside those of libtorch in float64.
#include "nn/ops/matmul.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera::nn {
namespace {

using Factors = std::vector<at::Tensor>;
using Compute = std::function<at::Tensor(const Factors&)>;

struct Computed {
  at::Tensor value;
  std::vector<at::Tensor> gradients;
};

Computed compute(const Compute& f, const Factors& factors, at::ScalarType dtype) {
  Factors leaves;
  for (const auto& t : factors) leaves.push_back(t.to(dtype).clone().set_requires_grad(true));
  const auto y = f(leaves);
  const auto weights = at::linspace(-1, 1, y.numel(), at::kDouble).view(y.sizes()).to(dtype);
  return {y.detach(), torch::autograd::grad({(y * weights).sum()}, leaves)};
}

/// Whole numbers: their products and sums are exact in 16 bits, too, but for the last rounding.
at::Tensor whole(at::IntArrayRef sizes) {
  return at::randint(-3, 4, sizes, at::kDouble);
}

void expect_as_in_float64(const std::string& what, const Compute& ours, const Compute& theirs, const Factors& factors) {
  const auto expected = compute(theirs, factors, at::kDouble);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
      return a.sizes() == b.sizes() &&
             (a.to(at::kDouble) - b).abs().max().item<double>() <= tolerance * (1 + b.abs().max().item<double>());
    };
    const auto found = compute(ours, factors, dtype);
    EXPECT_TRUE(near(found.value, expected.value)) << what << ' ' << dtype;
    EXPECT_EQ(found.value.scalar_type(), dtype) << what;
    EXPECT_TRUE(found.value.is_contiguous()) << what;
    for (std::size_t i = 0; i < factors.size(); ++i)
      EXPECT_TRUE(near(found.gradients[i], expected.gradients[i])) << what << ' ' << dtype << " gradient " << i;
  }
}

TEST(Matmul, OfEveryFormHasLibtorchsValuesAndGradients) {
  const Compute ours = [](const Factors& f) { return nn::matmul(f[0], f[1]); };
  const Compute theirs = [](const Factors& f) { return at::matmul(f[0], f[1]); };
  const auto expect = [&](const std::string& what, const Factors& f) { expect_as_in_float64(what, ours, theirs, f); };
  expect("matrices", {whole({70, 40}), whole({40, 36})});
  expect("small ones", {whole({3, 4}), whole({4, 2})});
  expect("a batch of rows", {whole({5, 20, 40}), whole({40, 36})});
  expect("one factor for a batch", {whole({8, 12}), whole({30, 12, 33})});
  expect("a batch of both", {whole({4, 70, 40}), whole({4, 40, 36})});
  expect("a batch of small ones", {whole({9, 3, 4}), whole({9, 4, 5})});
  const auto turned = [](const Compute& f) {
    return [f](const Factors& x) { return f({x[0].transpose(-2, -1), x[1].transpose(-2, -1)}); };
  };
  expect_as_in_float64("transposed", turned(ours), turned(theirs), {whole({40, 70}), whole({36, 40})});
  expect_as_in_float64("transposed, a batch", turned(ours), turned(theirs), {whole({3, 40, 70}), whole({3, 36, 40})});
}

TEST(Matmul, LinearHasLibtorchsValuesAndGradients) {
  const Compute ours = [](const Factors& f) { return nn::linear(f[0], f[1], f.size() > 2 ? f[2] : at::Tensor()); };
  const Compute theirs = [](const Factors& f) {
    return f.size() > 2 ? at::linear(f[0], f[1], f[2]) : at::linear(f[0], f[1]);
  };
  for (const auto& x : {whole({70, 40}), whole({5, 20, 40}), whole({1, 40})}) {
    expect_as_in_float64("linear", ours, theirs, {x, whole({36, 40})});
    expect_as_in_float64("linear with a bias", ours, theirs, {x, whole({36, 40}), whole({36})});
  }
}

TEST(Matmul, ReadsNothingBehindRows) {
  const auto part_of_nan = [](std::vector<std::int64_t> sizes) {
    auto wider = sizes;
    wider.back() += 5;
    const auto values = at::randn(sizes).to(at::kBFloat16);
    return at::full(wider, NAN, at::kBFloat16).narrow(-1, 0, sizes.back()).copy_(values);
  };
  const auto rows = part_of_nan({2, 33, 111}).requires_grad_(), b = part_of_nan({111, 63}).requires_grad_(),
             weight = part_of_nan({63, 111}).requires_grad_();
  const auto y = nn::matmul(rows, b), z = nn::linear(rows, weight);
  (y.sum() + z.sum()).backward();
  for (const auto& t : {y, z, rows.grad(), b.grad(), weight.grad()}) EXPECT_TRUE(t.isfinite().all().item<bool>());
}

TEST(Matmul, TakesNothing) {
  EXPECT_TRUE(
      at::equal(nn::matmul(at::ones({3, 0}, at::kHalf), at::ones({0, 4}, at::kHalf)), at::zeros({3, 4}, at::kHalf)));
  EXPECT_EQ(nn::matmul(at::ones({0, 5}, at::kHalf), at::ones({5, 4}, at::kHalf)).sizes(),
            (std::vector<std::int64_t>{0, 4}));
}

}  // namespace
}  // namespace tessera::nn
