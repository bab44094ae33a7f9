// Gradients in float16 of a loss that a gradient scaler multiplies.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "nn/ops/linear_cross_entropy.h"
#include "support/compare.h"

namespace tessera::nn {
namespace {

constexpr double kScale = 65536;

// The hidden states' gradient, with the scale inside and taken out again.
at::Tensor hidden_gradient(at::ScalarType dtype, double inside, bool head_trains) {
  torch::manual_seed(4);
  const auto hidden = torch::randn({48, 32}).to(dtype).set_requires_grad(true);
  const auto weight = torch::randn({2000, 32}).to(dtype).set_requires_grad(head_trains);
  const auto labels = torch::randint(0, 2000, {48}, torch::kLong);
  // One of many batches of a step: gradients of the unscaled loss are below float16's smallest number.
  const auto loss = linear_cross_entropy(hidden, weight, labels,
                                         {.normalizer = 1 << 20, .loss_scale = inside, .loss_dtype = at::kFloat});
  (loss * kScale).backward();
  return hidden.grad().to(at::kFloat) / kScale;
}

TEST(LinearCrossEntropyOp, Float16GradientsDoNotVanishWithTheLossScaleInside) {
  const auto expected = hidden_gradient(at::kFloat, 1, false);
  for (const bool head_trains : {false, true}) {
    test::expect_close(hidden_gradient(at::kFloat, kScale, head_trains), expected, 1e-5, "float32");
    test::expect_close(hidden_gradient(at::kHalf, kScale, head_trains), expected, 2e-2, "float16");
  }
  EXPECT_GT((hidden_gradient(at::kHalf, 1, true) - expected).abs().max().item<double>(),
            0.1 * expected.abs().max().item<double>());
}

}  // namespace
}  // namespace tessera::nn
