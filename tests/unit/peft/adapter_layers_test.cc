// Adapters in their layers against composites of PEFT's formulas, with every gradient.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "peft/methods/dora_layers.h"
#include "support/compare.h"
#include "tensor/rng.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

using nn::Embedding;
using nn::Linear;
using nn::reset_parameters;

/// What peft's DoraLinearLayer computes without dropout; the norm is detached.
at::Tensor peft_dora(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias, const at::Tensor& a,
                     const at::Tensor& b, const at::Tensor& m, double s) {
  const auto base = torch::linear(x, w);
  const auto norm = torch::linalg_vector_norm((w + s * torch::mm(b, a)).detach(), 2, at::IntArrayRef{1});
  const auto scale = m / norm;
  const auto y = base + (scale - 1) * base + scale * torch::linear(torch::linear(x, a), b) * s;
  return bias.defined() ? y + bias : y;
}

TEST(DoraLinearModule, FrozenNormsAreKeptAndTrainableOnesAreNot) {
  torch::manual_seed(1);
  for (const bool frozen : {true, false}) {
    Linear linear(8, 6, false);
    const auto adapter = std::make_shared<DoraLinear>(linear, LoraShape{.rank = 2, .scaling = 0.5});
    linear.attach(adapter);
    reset_parameters(linear, 3);
    linear.weight.set_requires_grad(!frozen);
    const auto x = torch::randn({3, 8});
    const auto before = linear(x).detach();
    {
      torch::NoGradGuard no_grad;
      linear.weight.mul_(2);
    }
    const auto& l = *adapter;
    const auto fresh =
        peft_dora(x, linear.weight.detach(), {}, l.a->weight.detach(), l.b->weight.detach(), l.magnitude.detach(), 0.5);
    EXPECT_EQ(torch::allclose(linear(x).detach(), fresh, 1e-4), !frozen);
  }
}

TEST(DoraLinearModule, FactorsAreNeverUnits) {
  Linear plain(8, 6), dora(8, 6);
  EXPECT_TRUE(LoraLinear(plain, {.rank = 2}).a->may_be_unit());
  EXPECT_FALSE(DoraLinear(dora, {.rank = 2}).a->may_be_unit());
  EXPECT_TRUE(dora.may_be_unit());
}

class EmbeddingAdapters : public testing::TestWithParam<bool> {};

TEST_P(EmbeddingAdapters, EqualsPeftsFormulaWithEveryGradient) {
  torch::manual_seed(2);
  const bool dora = GetParam();
  Embedding table(10, 6, at::kFloat, 3);
  const LoraShape shape{.rank = 2, .scaling = 1.5};
  const auto adapter = dora ? std::static_pointer_cast<LoraEmbedding>(std::make_shared<DoraEmbedding>(table, shape))
                            : std::make_shared<LoraEmbedding>(table, shape);
  table.attach(adapter);
  reset_parameters(table, 5);
  table.weight.set_requires_grad(false);
  const auto& low = *adapter;
  const auto magnitude = dora ? static_cast<const DoraEmbedding&>(low).magnitude : at::Tensor();
  const auto ids = torch::tensor({1, 3, 1, 9, 3, 0}, torch::kLong).view({2, 3});
  const auto g = torch::randn({2, 3, 6});
  std::vector<at::Tensor> leaves = {low.a, low.b};
  if (dora) leaves.push_back(magnitude);
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
    const auto scale = magnitude / torch::linalg_vector_norm(merged, 2, at::IntArrayRef{1});
    rows = rows * scale, update = update * scale;
  }
  const auto theirs = run(rows + update);
  for (std::size_t i = 0; i < ours.size(); ++i)
    test::expect_close(ours[i], theirs[i], 3e-6, i == 0 ? "value" : "gradient " + std::to_string(i - 1));
}

INSTANTIATE_TEST_SUITE_P(Dora, EmbeddingAdapters, testing::Bool());

TEST(EmbeddingModule, TheHeadUsesTheTableWithoutItsAdapter) {
  Embedding table(5, 2);
  table.attach(std::make_shared<LoraEmbedding>(table, LoraShape{.rank = 2, .scaling = 3}));
  reset_parameters(table, 1);
  const auto x = torch::randn({4, 2});
  EXPECT_TRUE(torch::allclose(table(x), torch::linear(x, table.weight), 1e-6, 1e-6));
}

TEST(LinearModule, HookedAdapterModulesGiveTheSameAsTheFusedPath) {
  struct Hooks : nn::ForwardHooks {
    void before_forward(const std::vector<at::Tensor*>&) override { ++calls; }
    void after_forward(const std::vector<at::Tensor*>&) override {}
    void abort_forward() noexcept override {}
    int calls = 0;
  } hooks;
  Linear linear(8, 6);
  const auto adapter = std::make_shared<LoraLinear>(linear, LoraShape{.rank = 2, .scaling = 0.5, .dropout = 0.25});
  linear.attach(adapter);
  reset_parameters(linear, 1);
  const auto x = torch::ones({3, 8});
  tensor::manual_seed(2);
  const auto fused = linear(x);
  adapter->a->set_hooks(&hooks);
  adapter->b->set_hooks(&hooks);
  tensor::manual_seed(2);
  test::expect_close(linear(x), fused, 1e-6, "output");
  EXPECT_EQ(hooks.calls, 2);
}

}  // namespace
}  // namespace tessera::peft
