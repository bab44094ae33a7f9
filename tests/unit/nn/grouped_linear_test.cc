// Linear layers of groups of rows as one product, beside each layer's own product.
#include "nn/ops/grouped_linear.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "nn/ops/expert_rows.h"
#include "nn/ops/lora_linear.h"
#include "support/compare.h"
#include "support/fake_device.h"
#include "tessera/nn/init.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kIn = 16, kOut = 24;

using Layers = std::vector<std::shared_ptr<Linear>>;
Linears pointers(const Layers& layers) {
  Linears out;
  for (const auto& layer : layers) out.push_back(layer.get());
  return out;
}

/// LoRA without more; `otherwise`: not as things stand.
class PlainLora final : public LinearAdapter {
 public:
  PlainLora(const Linear& layer, std::int64_t rank, double scaling, bool otherwise = false)
      : scaling_(scaling), otherwise_(otherwise) {
    auto& module = add_module("lora", "ModuleDict");
    module.register_parameter("a", torch::randn({rank, layer.in_features()}));
    module.register_parameter("b", torch::randn({layer.out_features(), rank}));
  }
  std::string class_name() const override { return "PlainLora"; }
  at::Tensor forward(const Linear& layer, const at::Tensor& x) override {
    return lora_linear(x, layer.handle(), layer.bias, low_rank());
  }
  std::optional<LowRank> plain_low_rank(const Linear&) const override {
    return otherwise_ ? std::nullopt : std::optional(low_rank());
  }

 private:
  LowRank low_rank() const {
    const auto parameters = modules().front().second->parameters();
    return {parameters[0], parameters[1], scaling_, 0};
  }
  double scaling_;
  bool otherwise_;
};

/// Layers with values, whose weights lie one behind another where `in_one` says so.
Layers layers_with_values(std::size_t count, bool in_one, std::int64_t rank) {
  torch::manual_seed(7);
  const auto whole = torch::randn({static_cast<std::int64_t>(count), kOut, kIn});
  Layers layers;
  for (std::size_t e = 0; e < count; ++e) {
    auto layer = std::make_shared<Linear>(kIn, kOut, /*with_bias=*/false);
    const auto mine = whole[static_cast<std::int64_t>(e)];
    layer->weight.set_data(in_one ? mine : mine.clone());
    if (rank > 0) {
      layer->attach(std::make_shared<PlainLora>(*layer, rank, 0.5));
      layer->weight.set_requires_grad(false);
    }
    layers.push_back(layer);
  }
  return layers;
}

struct Passed {
  at::Tensor y, gx;
  std::vector<at::Tensor> gradients;
};

/// x and y's gradient are the same in each call.
template <class F>
Passed pass(const Layers& layers, std::int64_t rows, const F& f) {
  torch::manual_seed(11);
  const auto x = torch::randn({rows, kIn}).set_requires_grad(true), g = torch::randn({rows, kOut});
  Passed out;
  out.y = f(x);
  out.y.backward(g);
  out.gx = x.grad();
  for (const auto& layer : layers)
    for (auto& p : layer->parameters()) {
      if (!p.requires_grad()) continue;
      out.gradients.push_back(p.grad().defined() ? p.grad().clone() : at::zeros_like(p));
      p.mutable_grad().reset();
    }
  return out;
}

TEST(GroupedLinear, GivesEachLayersValuesAndGradients) {
  const std::vector<std::int64_t> counts{5, 1, 0, 9, 3};
  const auto rows = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  ExpertRows groups;
  groups.ends = torch::tensor(counts).cumsum(0).to(at::kInt);
  for (const bool in_one : {true, false})
    for (const std::int64_t rank : {0, 8}) {
      const auto layers = layers_with_values(counts.size(), in_one, rank);
      const auto one_by_one = pass(layers, rows, [&](const at::Tensor& x) {
        const auto groups = x.split_with_sizes(counts);
        std::vector<at::Tensor> parts;
        for (std::size_t e = 0; e < layers.size(); ++e) parts.push_back((*layers[e])(groups[e]));
        return torch::cat(parts);
      });
      const auto grouped =
          pass(layers, rows, [&](const at::Tensor& x) { return grouped_linear(x, pointers(layers), groups); });
      SCOPED_TRACE(testing::Message() << "in one: " << in_one << ", rank " << rank);
      test::expect_close(grouped.y, one_by_one.y, 1e-6, "value");
      test::expect_close(grouped.gx, one_by_one.gx, 1e-6, "gradient of x");
      ASSERT_EQ(grouped.gradients.size(), layers.size() * (rank > 0 ? 2 : 1));
      for (std::size_t i = 0; i < grouped.gradients.size(); ++i)
        test::expect_close(grouped.gradients[i], one_by_one.gradients[i], 1e-6, "gradient " + std::to_string(i));
    }
}

TEST(GroupedLinear, TakesBf16OnDevicesAlone) {
  const auto takes = [](at::Device device, at::ScalarType dtype, std::int64_t rank,
                        const std::function<void(Layers&)>& change = {}) {
    auto layers = layers_with_values(2, /*in_one=*/false, rank);
    if (change) change(layers);
    for (const auto& layer : layers) layer->to(device, dtype);
    return can_group(torch::zeros({3, kIn}, dtype).to(device), pointers(layers));
  };
  const auto there = test::fake_device();
  for (const std::int64_t rank : {0, 8}) EXPECT_TRUE(takes(there, at::kBFloat16, rank)) << rank;
  EXPECT_FALSE(takes(at::kCPU, at::kBFloat16, 0));
  EXPECT_FALSE(takes(there, at::kFloat, 0));
  EXPECT_FALSE(takes(there, at::kBFloat16, 4)) << "a rank that is no multiple of 8";
  const auto second_with = [](std::int64_t rank, double scaling, bool otherwise = false) {
    return
        [=](Layers& layers) { layers[1]->attach(std::make_shared<PlainLora>(*layers[1], rank, scaling, otherwise)); };
  };
  EXPECT_TRUE(takes(there, at::kBFloat16, 8, second_with(8, 0.5)));
  EXPECT_FALSE(takes(there, at::kBFloat16, 0, second_with(8, 0.5))) << "an adapter in one of two layers";
  EXPECT_FALSE(takes(there, at::kBFloat16, 8, second_with(16, 0.5)));
  EXPECT_FALSE(takes(there, at::kBFloat16, 8, second_with(8, 2)));
  EXPECT_FALSE(takes(there, at::kBFloat16, 8, second_with(8, 0.5, /*otherwise=*/true)));
  EXPECT_FALSE(takes(there, at::kBFloat16, 0, [](Layers& layers) {
    layers[1] = std::make_shared<Linear>(kIn, kOut, /*with_bias=*/true);
    layers[1]->weight.set_data(torch::zeros({kOut, kIn}));
    layers[1]->bias.set_data(torch::zeros({kOut}));
  }));
  EXPECT_FALSE(takes(there, at::kBFloat16, 0, [](Layers& layers) {
    for (auto& layer : layers) {
      layer = std::make_shared<Linear>(kIn, 20, /*with_bias=*/false);
      layer->weight.set_data(torch::zeros({20, kIn}));
    }
  })) << "a side that is no multiple of 8";
}

TEST(ExpertRows, LieByExpertAndAddUpByToken) {
  const auto chosen = torch::tensor({2, 0, 2, 4, 0, 2}, at::kLong).view({3, 2});
  for (const bool one_more : {false, true}) {
    const auto rows = expert_rows(chosen, 5, one_more);
    std::vector<std::int64_t> counts{2, 0, 3, 0, 1};
    for (auto& count : counts) count += one_more ? 1 : 0;
    EXPECT_TRUE(torch::equal(rows.ends, torch::tensor(counts).cumsum(0).to(at::kInt)));
    EXPECT_EQ(rows.tokens.numel(), rows.ends[4].item<int>());
    EXPECT_TRUE(torch::equal(rows.tokens.index_select(0, rows.places.flatten()), torch::tensor({0, 0, 1, 1, 2, 2})));

    torch::manual_seed(5);
    const auto x = torch::randn({3, 4}).set_requires_grad(true), weights = torch::rand({3, 2}).set_requires_grad(true);
    const auto factor = torch::randn({5, 4});  // what an expert does
    const auto by_expert = factor.repeat_interleave(torch::tensor(counts), 0);
    const auto together = weighted_sums(spread_rows(x, rows) * by_expert, weights, rows);
    const auto expected =
        (x.unsqueeze(1) * factor.index_select(0, chosen.flatten()).view({3, 2, 4}) * weights.unsqueeze(2)).sum(1);
    test::expect_close(together, expected, 1e-6, "sums");
    const auto g = torch::randn({3, 4});
    const auto mine = torch::autograd::grad({together}, {x, weights}, {g});
    const auto theirs = torch::autograd::grad({expected}, {x, weights}, {g});
    for (std::size_t i = 0; i < mine.size(); ++i) test::expect_close(mine[i], theirs[i], 1e-6, std::to_string(i));
  }
}

}  // namespace
}  // namespace tessera::nn
