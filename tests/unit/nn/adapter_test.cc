// DoRA's fused product against PEFT's formula, with every gradient, and the table that adapters sit on.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "nn/ops/dora.h"
#include "nn/ops/lora_linear.h"
#include "support/compare.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/init.h"

namespace tessera::nn {
namespace {

at::Tensor leaf(at::IntArrayRef sizes) {
  return torch::randn(sizes).set_requires_grad(true);
}

/// What peft's DoraLinearLayer computes without dropout; the norm is detached.
at::Tensor peft_dora(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const at::Tensor& a,
                     const at::Tensor& b, const at::Tensor& m, double s) {
  const auto base = torch::linear(x, w);
  const auto norm = torch::linalg_vector_norm((w + s * torch::mm(b, a)).detach(), 2, at::IntArrayRef{1});
  const auto scale = m / norm;
  const auto y = base + (scale - 1) * base + scale * torch::linear(torch::linear(x, a), b) * s;
  return bias.defined() ? y + bias : y;
}

class DoraLinearOp : public testing::TestWithParam<bool> {};

TEST_P(DoraLinearOp, EqualsPeftsFormulaWithEveryGradient) {
  torch::manual_seed(1);
  const bool with_bias = GetParam();
  std::vector<at::Tensor> in = {leaf({9, 16}), leaf({12, 16}), leaf({4, 16}), leaf({12, 4}), leaf({12})};
  if (with_bias) in.push_back(leaf({12}));
  const auto bias = with_bias ? in[5] : at::Tensor();
  const auto g = torch::randn({9, 12});
  const auto run = [&](const at::Tensor& y) {
    for (auto& t : in) t.mutable_grad().reset();
    y.backward(g);
    std::vector<at::Tensor> out{y.detach()};
    for (auto& t : in) out.push_back(t.grad().clone());
    return out;
  };
  const auto ours = run(dora_linear(in[0], in[1], bias, {in[2], in[3], 1.7, 0.0}, in[4], squared_norms(in[1], 1)));
  const auto theirs = run(peft_dora(in[0], in[1], bias, in[2], in[3], in[4], 1.7));
  for (std::size_t i = 0; i < ours.size(); ++i)
    test::expect_close(ours[i], theirs[i], 3e-6, i == 0 ? "value" : "gradient " + std::to_string(i - 1));
}

INSTANTIATE_TEST_SUITE_P(Bias, DoraLinearOp, testing::Bool());

TEST(EmbeddingModule, PaddingTakesNoGradientThroughTheLookup) {
  Embedding table(5, 2, at::kFloat, 1);
  reset_parameters(table, 1);
  table(torch::tensor({0, 1, 1, 4}, torch::kLong)).sum().backward();
  const auto expected = torch::tensor({1, 0, 0, 0, 1}, torch::kFloat).unsqueeze(1).expand({5, 2});
  EXPECT_TRUE(torch::equal(table.weight.grad(), expected));
  EXPECT_EQ(table.extra_repr(), "5, 2, padding_idx=1");
}

}  // namespace
}  // namespace tessera::nn
