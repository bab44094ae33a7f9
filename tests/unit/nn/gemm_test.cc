#include "nn/gemm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "nn/kernels.h"

namespace tessera::nn {
namespace {

double gemm_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Gemm, ReadsTransposedAndBatchedOperands) {
  const auto a = at::randn({33, 70}), b = at::randn({70, 19});
  const auto expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  EXPECT_LT(gemm_difference(gemm(a, b), expected), 2e-5);
  EXPECT_LT(gemm_difference(gemm(a.t().contiguous().t(), b.t().contiguous().t()), expected), 2e-5);
  const auto c = at::randn({5, 9, 8}), d = at::randn({5, 7, 8});
  EXPECT_LT(gemm_difference(gemm(c, d.transpose(1, 2)), at::bmm(c.to(at::kDouble), d.transpose(1, 2).to(at::kDouble))),
            1e-5);
}

TEST(Gemm, WritesAndAddsInPlaceIntoPartsOfATensor) {
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto a = at::randn({6, 16}).to(dtype), b = at::randn({16, 32}).to(dtype);
    const auto product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    const auto whole = at::ones({10, 32}, dtype), part = whole.narrow(0, 2, 6);
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.2;
    gemm_to(part, a, b, 0.5);
    EXPECT_LT(gemm_difference(part, product * 0.5), tolerance);
    gemm_add(part, a, b, 2.0);
    EXPECT_LT(gemm_difference(part, product * 2.5), tolerance);
    EXPECT_EQ(gemm_difference(whole.narrow(0, 0, 2), at::ones({2, 32})), 0);
    EXPECT_EQ(gemm_difference(whole.narrow(0, 8, 2), at::ones({2, 32})), 0);
  }
}

TEST(Gemm, GivesTheSameBitsAgain) {
  const auto a = at::randn({128, 96}), b = at::randn({96, 64});
  EXPECT_TRUE(at::equal(gemm(a, b), gemm(a, b)));
}

TEST(Affine, HasTheGradientsOfLinear) {
  for (const bool with_bias : {false, true}) {
    const auto x = at::randn({2, 5, 12}).requires_grad_(), w = at::randn({7, 12}).requires_grad_(),
               b = with_bias ? at::randn({7}).requires_grad_() : at::Tensor(), seed = at::randn({2, 5, 7});
    std::vector<at::Tensor> inputs = {x, w};
    if (with_bias) inputs.push_back(b);
    const auto y = affine(x, w, b), expected = at::linear(x, w, b);
    EXPECT_LT(gemm_difference(y.detach(), expected.detach()), 1e-5);
    const auto grads = torch::autograd::grad({y}, inputs, {seed}),
               wanted = torch::autograd::grad({expected}, inputs, {seed});
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_LT(gemm_difference(grads[i], wanted[i]), 1e-5) << i;
  }
}

TEST(Affine, FrozenWeightsAndInputsGetNoGradient) {
  const auto x = at::randn({5, 12}), w = at::randn({7, 12});
  EXPECT_FALSE(affine(x, w, {}).requires_grad());
  const auto trained = at::randn({5, 12}).requires_grad_();
  affine(trained, w, {}).sum().backward();
  EXPECT_LT(gemm_difference(trained.grad(), w.sum(0).expand({5, 12})), 1e-5);
  EXPECT_FALSE(w.grad().defined());
}

TEST(Bfloat16, ConvertsAsTorchDoes) {
  auto x = at::randn({1001}) * 1e3;
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x[1] = std::numeric_limits<float>::infinity();
  x[2] = std::numeric_limits<float>::max();
  x[3] = 1.00390625f;  // halfway between two
  x[4] = -0.0f;
  const auto narrowed = at::empty({1001}, at::kBFloat16);
  kernels::narrow(x.const_data_ptr<float>(),
                  reinterpret_cast<std::uint16_t*>(narrowed.mutable_data_ptr<at::BFloat16>()), 1001);
  EXPECT_TRUE(at::equal(narrowed.narrow(0, 1, 1000), x.to(at::kBFloat16).narrow(0, 1, 1000)));
  EXPECT_TRUE(std::isnan(narrowed[0].item<float>()));
  const auto widened = at::empty({1001}, at::kFloat);
  kernels::widen(reinterpret_cast<const std::uint16_t*>(narrowed.const_data_ptr<at::BFloat16>()),
                 widened.mutable_data_ptr<float>(), 1001);
  EXPECT_TRUE(at::equal(widened.narrow(0, 1, 1000), narrowed.to(at::kFloat).narrow(0, 1, 1000)));
}

}  // namespace
}  // namespace tessera::nn
