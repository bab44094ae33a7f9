// PVeRA draws in training what VeRA computes.
#include "peft/methods/pvera.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "nn/ops/row_noise.h"
#include "support/compare.h"
#include "tensor/rng.h"

namespace tessera::peft {
namespace {

constexpr std::int64_t kRank = 5, kIn = 24, kOut = 16, kTokens = 12;

class PveraLayer : public testing::Test {
 protected:
  PveraLayer() : layer(kIn, kOut, true) {
    torch::manual_seed(3);
    layer.weight.set_data(torch::randn({kOut, kIn}) / 8);
    layer.bias.set_data(torch::randn({kOut}));
    layer.weight.set_requires_grad(false);
    layer.bias.set_requires_grad(false);
    layer.train();
    method.r = kRank;
    tensors = {torch::randn({kOut}).set_requires_grad(true), torch::randn({2 * kRank}).set_requires_grad(true),
               torch::randn({2 * kRank, kIn + 3}) / 4, torch::randn({kOut + 2, kRank}) / 4};
    x = torch::randn({2, kTokens / 2, kIn}).set_requires_grad(true);
  }
  at::Tensor output() const { return method.output(layer, sizes, x, tensors); }
  /// The same by PEFT's formula from these numbers.
  at::Tensor expected(const at::Tensor& noise) const {
    const auto u = at::linear(x, tensors[2].narrow(1, 0, kIn)) * tensors[1];
    const auto mean = u.narrow(2, 0, kRank), deviation = (u.narrow(2, kRank, kRank) / 2).exp();
    const auto inner = mean + noise.view(mean.sizes()) * deviation;
    return at::linear(x, layer.weight, layer.bias) + at::linear(inner, tensors[3].narrow(0, 0, kOut)) * tensors[0];
  }
  void expect_same(const at::Tensor& computed, const at::Tensor& wanted) const {
    test::expect_close(computed, wanted, 2e-5, "outputs");
    const auto weights = torch::arange(wanted.numel(), at::kFloat).mul(0.37).sin().view(wanted.sizes());
    const std::vector<at::Tensor> of = {x, tensors[0], tensors[1]};
    const auto found = torch::autograd::grad({(computed * weights).sum()}, of);
    const auto right = torch::autograd::grad({(wanted * weights).sum()}, of);
    for (std::size_t i = 0; i < of.size(); ++i)
      test::expect_close(found[i], right[i], 2e-5, "gradient " + std::to_string(i));
  }

  nn::Linear layer;
  Pvera method;
  const LayerSizes sizes = {"layer", kIn, kOut};
  Tensors tensors;
  at::Tensor x;
};

TEST_F(PveraLayer, ComputesWithDrawnNumbersAndDrawsThemAgainInBackward) {
  tensor::manual_seed(11);
  const auto noise = nn::row_noise(kTokens, kRank, tensor::next_key());
  tensor::manual_seed(11);
  expect_same(output(), expected(noise));
  tensor::manual_seed(11);
  const auto first = output().detach(), second = output().detach();
  EXPECT_GT((first - second).abs().max().item<double>(), 0.01) << "each call draws";
}

TEST_F(PveraLayer, ComputesWithTheMeansInInference) {
  layer.eval();
  expect_same(output(), expected(torch::zeros({kTokens, kRank})));
  method.sample_at_inference = true;
  EXPECT_GT((output() - expected(torch::zeros({kTokens, kRank}))).abs().max().item<double>(), 0.01);
}

TEST_F(PveraLayer, DrawsOfASeedDoNotDependOnTheRuns) {
  const auto drawn = [&](std::uint64_t run) {
    tensor::manual_seed(run);
    return output().detach();
  };
  EXPECT_FALSE(at::equal(drawn(1), drawn(2)));
  method.generator_seed = 5;
  EXPECT_TRUE(at::equal(drawn(1), drawn(2)));
}

TEST(RowNoise, IsNormalAndOfTheRowsKeys) {
  const auto noise = nn::row_noise(400, 50, {3, 4});
  EXPECT_NEAR(noise.mean().item<double>(), 0, 0.03);
  EXPECT_NEAR(noise.std().item<double>(), 1, 0.03);
  const tensor::RowScope rows(torch::arange(400, at::kLong).flip(0).contiguous());
  const auto unkeyed = nn::row_noise(400, 50, {3, 4});
  EXPECT_TRUE(at::equal(unkeyed, noise)) << "rows had no keys before";
  const tensor::PassScope keyed(torch::arange(400, at::kLong).flip(0).contiguous(), 0);
  EXPECT_TRUE(at::equal(nn::row_noise(400, 50, {3, 4}), noise.flip(0)));
}

}  // namespace
}  // namespace tessera::peft
