// Activations and gates against their definitions in double, for float32 and bfloat16.
#include "nn/kernels/activation_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/near_double.h"

namespace tessera::nn::kernels {
namespace {

struct Point {
  double value, slope;
};

Point exact(Activation activation, double x) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (activation) {
    case Activation::kSilu:
      return {x * sigmoid(x), sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x))};
    case Activation::kGelu: {
      const double share = 0.5 * std::erfc(-x / std::sqrt(2.0));
      return {x * share, share + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI)};
    }
    case Activation::kGeluTanh: {
      const double root = std::sqrt(2 / M_PI), t = std::tanh(root * (x + 0.044715 * x * x * x));
      return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x)};
    }
    case Activation::kQuickGelu: {
      const double s = sigmoid(1.702 * x);
      return {x * s, s + 1.702 * x * s * (1 - s)};
    }
    default:
      return {x > 0 ? x * x : 0.0, x > 0 ? 2 * x : 0.0};
  }
}

class ActivationKernel : public testing::TestWithParam<std::tuple<Activation, std::int64_t>> {};

/// Both directions, with and without `up`; errors relative to the factors' sizes, since gelu cancels far below zero.
template <class T>
void expect_exact(Activation activation, std::int64_t n) {
  const auto x = row_of<T>(waves(n, 0.7f, 9.0f)), up = row_of<T>(waves(n, 1.1f)), g = row_of<T>(waves(n, 0.3f, 2.0f));
  const auto size = static_cast<std::size_t>(n);
  for (const bool gated : {false, true}) {
    std::vector<T> y(size + 1, T{3}), gx(y), gu(y), again(y);
    const T* factor = gated ? up.data() : nullptr;
    activate(activation, ActivationRow<T>{x.data(), factor, y.data(), n});
    activation_gradient(activation, ActivationGradientRow<T>{g.data(), x.data(), factor, gx.data(),
                                                             gated ? gu.data() : nullptr, again.data(), n});
    for (std::size_t i = 0; i < size; ++i) {
      const double at = to_float(x[i]), u = gated ? to_float(up[i]) : 1.0, in = to_float(g[i]);
      const auto [value, slope] = exact(activation, at);
      const double arithmetic = 1e-6 * (1 + std::abs(at));
      EXPECT_NEAR(to_float(y[i]), value * u, rounding<T>(0) * std::abs(value * u) + arithmetic * std::abs(u)) << at;
      EXPECT_NEAR(to_float(gx[i]), in * u * slope,
                  rounding<T>(0) * std::abs(in * u * slope) + 2 * arithmetic * std::abs(in * u))
          << at;
      if (gated) {
        EXPECT_NEAR(to_float(gu[i]), in * value, rounding<T>(0) * std::abs(in * value) + arithmetic * std::abs(in));
      }
      EXPECT_EQ(again[i], y[i]) << "the forward's bits";
    }
    for (const auto& out : {y, gx, again}) EXPECT_EQ(out.back(), T{3}) << "beyond the row";
  }
}

TEST_P(ActivationKernel, EqualsItsDefinitionInFloat32) {
  expect_exact<float>(std::get<0>(GetParam()), std::get<1>(GetParam()));
}
TEST_P(ActivationKernel, EqualsItsDefinitionInBfloat16) {
  expect_exact<std::uint16_t>(std::get<0>(GetParam()), std::get<1>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All, ActivationKernel,
                         testing::Combine(testing::Values(Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                                          Activation::kQuickGelu, Activation::kReluSquared),
                                          testing::Values(0, 1, 15, 33, 1000)));

TEST(ActivationKernels, KeepWhatIsNotANumberAndStayFiniteFarOut) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto activation : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu}) {
    const std::vector<float> x{nan, -1e4f, 1e4f}, ones(3, 1.0f);
    std::vector<float> y(3), gx(3);
    activate(activation, ActivationRow<float>{x.data(), nullptr, y.data(), 3});
    activation_gradient(activation, {ones.data(), x.data(), nullptr, gx.data(), nullptr, nullptr, 3});
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(gx[0]));
    EXPECT_NEAR(y[1], 0.0f, 1e-3f);
    EXPECT_NEAR(gx[1], 0.0f, 1e-3f);
    EXPECT_EQ(y[2], 1e4f);
    EXPECT_NEAR(gx[2], 1.0f, 1e-6f);
  }
}

}  // namespace
}  // namespace tessera::nn::kernels
