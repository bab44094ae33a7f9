#pragma once
// Small modules for tests of the sharding runtime: odd shapes, nested blocks, optional ties, no random numbers (the
// default generator is shared by thread-ranks).
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/block.h"

namespace tessera::testing {

/// The same values on every rank and in every run, about uniform in [-scale, scale].
inline at::Tensor fixed_values(at::IntArrayRef shape, double seed, double scale) {
  const auto n = c10::multiply_integers(shape);
  return (at::sin(at::arange(n, at::kDouble) * 12.9898 + seed * 78.233) * scale).to(at::kFloat).reshape(shape);
}

class Affine final : public nn::Layer {
 public:
  Affine(std::int64_t in, std::int64_t out, double seed) {
    weight = register_parameter("weight", fixed_values({out, in}, seed, 1.0 / static_cast<double>(in)));
    bias = register_parameter("bias", fixed_values({out}, seed + 0.5, 0.1));
  }
  std::string class_name() const override { return "Affine"; }
  at::Tensor weight, bias;

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return at::linear(x, weight, bias); }
};

/// x + down(tanh(up(x))) * scale; `scale` has one element, fewer than most worlds.
class MlpBlock final : public nn::Layer {
 public:
  MlpBlock(std::int64_t dim, std::int64_t hidden, double seed)
      : up(std::make_shared<Affine>(dim, hidden, seed)), down(std::make_shared<Affine>(hidden, dim, seed + 1)) {
    register_module("up", up);
    register_module("down", down);
    scale = register_parameter("scale", at::ones({1}));
  }
  std::string class_name() const override { return "MlpBlock"; }
  std::shared_ptr<Affine> up, down;
  at::Tensor scale;
  bool throws = false;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    auto y = (*down)(at::tanh((*up)(x)));
    if (throws) throw std::runtime_error("a failing block");
    return x + y * scale;
  }
};

struct NetOptions {
  int blocks = 3;
  bool tied = false;    // the head reads the first layer's weight
  bool unused = false;  // a block that no forward runs
  bool twice = false;   // every block runs two times
  int skip = -1;        // this block isn't run
};

class SmallNet final : public nn::Layer {
 public:
  explicit SmallNet(NetOptions options = {}) : options(options) {
    stem = register_module("stem", std::make_shared<Affine>(6, kDim, 1));
    for (int i = 0; i < options.blocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<MlpBlock>(kDim, 11, 3.0 + 2 * i)));
    if (options.unused) spare = register_module("spare", std::make_shared<MlpBlock>(kDim, 5, 40));
    if (options.tied)
      tied_weight = register_parameter("head_weight", stem->weight);
    else
      head = register_module("head", std::make_shared<Affine>(kDim, 6, 50));
  }
  std::string class_name() const override { return "SmallNet"; }
  static constexpr std::int64_t kDim = 7;
  NetOptions options;
  std::shared_ptr<Affine> stem, head;
  std::vector<std::shared_ptr<MlpBlock>> blocks;
  std::shared_ptr<MlpBlock> spare;
  at::Tensor tied_weight;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    x = (*stem)(x);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (options.skip == static_cast<int>(i)) continue;
      x = (*blocks[i])(x);
      if (options.twice) x = (*blocks[i])(x);
    }
    return tied_weight.defined() ? at::linear(x, tied_weight.t()) : (*head)(x);
  }
};

/// The loss of one rank's batch at one step.
inline at::Tensor batch(int rank, int step) {
  return fixed_values({4, 6}, 100.0 + 10 * step + rank, 1.0);
}
inline at::Tensor loss_of(const at::Tensor& y, int rank, int step) {
  return (y.to(at::kFloat) - fixed_values(y.sizes(), 500.0 + 10 * step + rank, 1.0)).pow(2).mean();
}

}  // namespace tessera::testing
