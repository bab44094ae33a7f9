// Sums of our own against libtorch's, to the bit: values, and the gradients that autograd would add up.
#include "nn/ops/sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace tessera::nn {
namespace {

/// Small ones are left to libtorch.
constexpr std::int64_t kSmall[] = {3, 5}, kLarge[] = {300, 131};

class Sums : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor random(at::IntArrayRef sizes) const { return at::randn(sizes).to(GetParam()); }
  at::Tensor leaf(at::IntArrayRef sizes) const { return random(sizes).requires_grad_(); }
};

at::Tensor gradient(const at::Tensor& y, const at::Tensor& x, const at::Tensor& gy) {
  return torch::autograd::grad({y}, {x}, {gy})[0];
}

TEST_P(Sums, PlusIsLibtorchs) {
  at::manual_seed(1);
  for (const at::IntArrayRef sizes : {at::IntArrayRef(kSmall), at::IntArrayRef(kLarge)}) {
    const auto a = leaf(sizes), b = leaf(sizes), row = leaf({sizes[1]}), g = random(sizes);
    EXPECT_TRUE(at::equal(plus(a, b), a + b));
    EXPECT_TRUE(at::equal(plus(a.detach().t().contiguous().t(), b), a + b)) << "columns beside each other";
    EXPECT_TRUE(at::equal(gradient(plus(a, b), b, g), g));
    EXPECT_TRUE(at::equal(plus(a, row), a + row));
    EXPECT_TRUE(at::equal(gradient(plus(a, row), a, g), g));
    EXPECT_TRUE(at::allclose(gradient(plus(a, row), row, g), g.to(at::kDouble).sum(0).to(GetParam()), 0.01, 1e-4));
  }
}

TEST_P(Sums, GradientsOfReadersAreWhatAutogradAddsUp) {
  at::manual_seed(2);
  for (const at::IntArrayRef sizes : {at::IntArrayRef(kSmall), at::IntArrayRef(kLarge)}) {
    const auto x = leaf(sizes), u = random(sizes), v = random(sizes), w = random(sizes), g = random(sizes);
    const auto [for_u, for_v, for_w] = for_readers<3>(x);
    EXPECT_TRUE(at::equal(for_u, x));
    const auto read = [&](const at::Tensor& first, const at::Tensor& second, const at::Tensor& third) {
      return std::vector{first * u, second * v, third * w};
    };
    const auto gradients = [&](const std::vector<at::Tensor>& y) {
      return torch::autograd::grad(y, {x}, {g, g, g})[0];
    };
    EXPECT_TRUE(at::equal(gradients(read(for_u, for_v, for_w)), gradients(read(x, x, x))));
  }
}

TEST_P(Sums, AReaderMayBeLeftOut) {
  const auto x = leaf(kLarge), g = random(kLarge);
  const auto readers = for_readers<3>(x);
  EXPECT_TRUE(at::equal(gradient(readers[1] * 2, x, g), g * 2));
}

TEST_P(Sums, ReadersOfWhatNeedsNoGradientReadItItself) {
  const auto x = random(kLarge);
  for (const auto& reader : for_readers<2>(x)) EXPECT_TRUE(reader.is_same(x));
  const at::NoGradGuard no_grad;
  const auto parameter = leaf(kLarge);
  for (const auto& reader : for_readers<2>(parameter)) EXPECT_TRUE(reader.is_same(parameter));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Sums, testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble));

}  // namespace
}  // namespace tessera::nn
