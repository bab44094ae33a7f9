// Adapters in their slots against composites of PEFT's formulas, with every gradient.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "nn/dora.h"
#include "nn/lora_linear.h"
#include "support/compare.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/init.h"
#include "tessera/nn/linear.h"

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

TEST(DoraLinearModule, FrozenNormsAreKeptAndTrainableOnesAreNot) {
  torch::manual_seed(1);
  for (const bool frozen : {true, false}) {
    Linear linear(8, 6, false);
    linear.attach_adapter({.rank = 2, .scaling = 0.5, .magnitude = true});
    reset_parameters(linear, 3);
    linear.weight.set_requires_grad(!frozen);
    const auto x = torch::randn({3, 8});
    const auto before = linear(x).detach();
    {
      torch::NoGradGuard no_grad;
      linear.weight.mul_(2);
    }
    const auto& l = *linear.adapter();
    const auto fresh =
        peft_dora(x, linear.weight.detach(), {}, l.a->weight.detach(), l.b->weight.detach(), l.magnitude.detach(), 0.5);
    EXPECT_EQ(torch::allclose(linear(x).detach(), fresh, 1e-4), !frozen);
  }
}

TEST(DoraLinearModule, FactorsAreNeverUnits) {
  Linear plain(8, 6), dora(8, 6);
  plain.attach_adapter({.rank = 2});
  dora.attach_adapter({.rank = 2, .magnitude = true});
  EXPECT_TRUE(plain.adapter()->a->may_be_unit());
  EXPECT_FALSE(dora.adapter()->a->may_be_unit());
  EXPECT_TRUE(dora.may_be_unit());
}

class EmbeddingAdapterTest : public testing::TestWithParam<bool> {};

TEST_P(EmbeddingAdapterTest, EqualsPeftsFormulaWithEveryGradient) {
  torch::manual_seed(2);
  const bool dora = GetParam();
  Embedding table(10, 6, at::kFloat, 3);
  table.attach_adapter({.rank = 2, .scaling = 1.5, .magnitude = dora});
  reset_parameters(table, 5);
  table.weight.set_requires_grad(false);
  const auto& low = *table.adapter();
  const auto ids = torch::tensor({1, 3, 1, 9, 3, 0}, torch::kLong).view({2, 3});
  const auto g = torch::randn({2, 3, 6});
  std::vector<at::Tensor> leaves = {low.a, low.b};
  if (dora) leaves.push_back(low.magnitude);
  const auto run = [&](const at::Tensor& y) {
    for (auto& t : leaves) t.mutable_grad().reset();
    y.backward(g);
    std::vector<at::Tensor> out{y.detach()};
    for (auto& t : leaves) out.push_back(t.grad().clone());
    return out;
  };
  const auto ours = run(table(ids));
  auto rows = torch::embedding(table.weight, ids);
  auto update = torch::matmul(torch::embedding(low.a.t(), ids, /*padding_idx=*/3), low.b.t()) * 1.5;
  if (dora) {
    const auto merged = table.weight.t() + 1.5 * torch::mm(low.b, low.a).detach();
    const auto scale = low.magnitude / torch::linalg_vector_norm(merged, 2, at::IntArrayRef{1});
    rows = rows * scale, update = update * scale;
  }
  const auto theirs = run(rows + update);
  for (std::size_t i = 0; i < ours.size(); ++i)
    test::expect_close(ours[i], theirs[i], 3e-6, i == 0 ? "value" : "gradient " + std::to_string(i - 1));
}

INSTANTIATE_TEST_SUITE_P(Dora, EmbeddingAdapterTest, testing::Bool());

TEST(EmbeddingModule, PaddingTakesNoGradientThroughTheLookup) {
  Embedding table(5, 2, at::kFloat, 1);
  reset_parameters(table, 1);
  table(torch::tensor({0, 1, 1, 4}, torch::kLong)).sum().backward();
  const auto expected = torch::tensor({1, 0, 0, 0, 1}, torch::kFloat).unsqueeze(1).expand({5, 2});
  EXPECT_TRUE(torch::equal(table.weight.grad(), expected));
  EXPECT_EQ(table.extra_repr(), "5, 2, padding_idx=1");
}

TEST(EmbeddingModule, TheHeadUsesTheTableWithoutItsAdapter) {
  Embedding table(5, 2);
  table.attach_adapter({.rank = 2, .scaling = 3});
  reset_parameters(table, 1);
  const auto x = torch::randn({4, 2});
  EXPECT_TRUE(torch::allclose(table(x), torch::linear(x, table.weight), 1e-6, 1e-6));
}

}  // namespace
}  // namespace tessera::nn
