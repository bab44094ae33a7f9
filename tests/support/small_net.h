#pragma once
// Small modules for tests of the sharding runtime: odd shapes, nested blocks, optional ties, no random numbers (the
// default generator is shared by thread-ranks).
#include <ATen/ATen.h>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
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
  std::function<void()> ran;  // called in a forward

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    auto y = (*down)(at::tanh((*up)(x)));
    if (ran) ran();
    if (throws) throw std::runtime_error("a failing block");
    return x + y * scale;
  }
};

/// Activation checkpointing of a layer: nothing is kept but the input; backward runs the layer again, inside backward.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, std::int64_t layer) {
    context->saved_data["layer"] = layer;
    context->save_for_backward({x});
    at::NoGradGuard no_grad;
    return (*reinterpret_cast<nn::Layer*>(layer))(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    at::Tensor y;
    {
      at::AutoGradMode with_grad(true);
      y = (*reinterpret_cast<nn::Layer*>(context->saved_data["layer"].toInt()))(x);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), at::Tensor()};
  }
};
inline at::Tensor recomputed(nn::Layer& layer, const at::Tensor& x) {
  return Recompute::apply(x, reinterpret_cast<std::int64_t>(&layer));
}

/// Runs a layer that it doesn't own, recomputing it: put around a unit or inside one.
class CheckpointedBlock final : public nn::Layer {
 public:
  explicit CheckpointedBlock(std::shared_ptr<nn::Layer> inner) : inner(register_module("inner", std::move(inner))) {}
  std::string class_name() const override { return "CheckpointedBlock"; }
  std::shared_ptr<nn::Layer> inner;

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return recomputed(*inner, x); }
};

struct NetOptions {
  int blocks = 3;
  bool tied = false;        // the head reads the first layer's weight
  bool unused = false;      // a block that no forward runs
  bool twice = false;       // every block runs two times
  int skip = -1;            // this block isn't run
  bool checkpoint = false;  // blocks are run again in backward
};

class SmallNet final : public nn::Layer {
 public:
  explicit SmallNet(NetOptions options = {}) : options(options) {
    stem = register_module("stem", std::make_shared<Affine>(6, kDim, 1));
    for (int i = 0; i < options.blocks; ++i) {
      blocks.push_back(std::make_shared<MlpBlock>(kDim, 11, 3.0 + 2 * i));
      layers.push_back(blocks.back());
      if (options.checkpoint) layers.back() = std::make_shared<CheckpointedBlock>(blocks.back());
      register_module("block" + std::to_string(i), layers.back());
    }
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
  std::vector<std::shared_ptr<nn::Layer>> layers;  // the blocks, as they are run
  std::shared_ptr<MlpBlock> spare;
  at::Tensor tied_weight;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    x = (*stem)(x);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (options.skip == static_cast<int>(i)) continue;
      x = (*layers[i])(x);
      if (options.twice) x = (*layers[i])(x);
    }
    return tied_weight.defined() ? at::linear(x, tied_weight.t()) : (*head)(x);
  }
};

/// The loss of one rank's batch at one step.
inline at::Tensor batch(int rank, int step) {
  return fixed_values({4, 6}, 100.0 + 10 * step + rank, 1.0);
}
inline at::Tensor loss_of(const at::Tensor& y, int rank, int step) {
  const auto target = fixed_values(y.sizes(), 500.0 + 10 * step + rank, 1.0).to(y.device());
  return (y.to(at::kFloat) - target).pow(2).mean();
}

}  // namespace tessera::testing
