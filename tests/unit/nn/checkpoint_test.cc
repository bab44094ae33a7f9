// Recomputation of blocks whose random numbers are libtorch's.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "tessera/nn/block.h"
#include "tessera/nn/dropout.h"
#include "tessera/tensor/random.h"

namespace tessera::nn {
namespace {

/// As a user may write it.
struct Noisy final : Layer {
  at::Tensor weight = register_parameter("weight", torch::ones({16, 16}) / 8);
  std::shared_ptr<Dropout> ours = register_module("ours", std::make_shared<Dropout>(0.3));
  std::string class_name() const override { return "Noisy"; }
  at::Tensor forward_impl(at::Tensor x) override {
    return x + at::dropout((*ours)(at::linear(x, weight)), 0.5, is_training());
  }
};

struct Tower final : Layer {
  std::vector<std::shared_ptr<Noisy>> blocks;
  Tower() {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Noisy>()));
  }
  std::string class_name() const override { return "Tower"; }
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& block : blocks) x = (*block)(x);
    return x;
  }
};

TEST(ActivationCheckpointing, DrawsTheSameFromLibtorchsGenerators) {
  const auto run = [](bool recompute) {
    Tower tower;
    set_checkpointing(
        tower, [&](const std::string&, const HookedModule& m) { return recompute && m.class_name() == "Noisy"; });
    manual_seed(3);
    const auto y = tower(at::randn({8, 16}));
    y.square().sum().backward();
    std::vector<at::Tensor> results = {y.detach()};
    for (const auto& p : tower.parameters()) results.push_back(p.grad());
    results.push_back(at::randn({4}));  // what is drawn behind it
    return results;
  };
  const auto kept = run(false), recomputed = run(true);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], recomputed[i])) << i;
}

}  // namespace
}  // namespace tessera::nn
