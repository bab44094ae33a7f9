// Modules and habits that people bring along: libtorch's layers in their own, graphs that are kept, parameters that are
// frozen for a while. All is compared with the module that is not sharded, or refused by name.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "support/compare.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"
#include "tessera/tensor/random.h"

namespace tessera {
namespace {

using fsdp::FullyShardedDataParallel;
using fsdp::GatherForm;
using fsdp::ShardingStrategy;
using testing::fixed_values;
using testing::SmallNet;
using Tensors = std::map<std::string, at::Tensor>;

constexpr double kUserRounding = 2e-5;  // sums over ranks in another order

Tensors gradients_of(FullyShardedDataParallel& sharded) {
  Tensors found;
  sharded.visit_full_grads([&](const std::string& name, const at::Tensor& g) { found[name] = g.clone(); });
  return found;
}

Tensors values_of(FullyShardedDataParallel& sharded) {
  Tensors found;
  sharded.visit_full([&](const std::string& name, const at::Tensor& t) { found[name] = t.clone(); });
  return found;
}

/// Gradients after `run` on one and two ranks, under every strategy and form, are the mean over the ranks of those of
/// the module that is not sharded.
template <class Net>
void expect_gradients(const std::function<std::shared_ptr<Net>()>& make, const std::vector<std::string>& classes,
                      const std::function<void(Net&, int rank)>& run) {
  for (int world : {1, 2}) {
    std::vector<std::shared_ptr<Net>> alone;
    for (int rank = 0; rank < world; ++rank) run(*alone.emplace_back(make()), rank);
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
      for (auto form : testing::kForms) {
        std::vector<std::shared_ptr<Net>> nets;  // here: libtorch's generator is the process's
        for (int rank = 0; rank < world; ++rank) nets.push_back(make());
        comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
          const auto rank = static_cast<std::size_t>(group->rank());
          auto sharded = fsdp::fully_shard(*nets[rank], group,
                                           {.strategy = strategy, .wrap = fsdp::wrap_classes(classes), .gather = form});
          run(*nets[rank], group->rank());
          for (const auto& [name, g] : gradients_of(*sharded)) {
            auto mean = at::zeros_like(g);
            for (auto& net : alone)
              if (const auto own = net->named_parameters()[name].grad(); own.defined()) mean += own.to_dense() / world;
            test::expect_close(g, mean, kUserRounding, name);
          }
          for (const auto& buffer : nets[rank]->named_buffers())
            EXPECT_TRUE(at::equal(buffer.value(), alone[rank]->named_buffers()[buffer.key()])) << buffer.key();
          const auto memory = sharded->memory();
          if (form == GatherForm::kCopy && strategy == ShardingStrategy::kFullShard) {
            EXPECT_EQ(memory.gathered_bytes, 0);
          }
        });
      }
    }
  }
}

/// Of libtorch's layers.
struct Words final : nn::Layer {
  torch::nn::Embedding table{nullptr};
  Words() {
    table =
        register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 6).padding_idx(0).sparse(true)));
  }
  std::string class_name() const override { return "Words"; }
  at::Tensor forward_impl(at::Tensor x) override { return table(x).transpose(1, 2); }
};
struct Convolutions final : nn::Layer {
  torch::nn::Sequential all{nullptr};
  Convolutions() {
    all = register_module("all", torch::nn::Sequential(torch::nn::Conv1d(torch::nn::Conv1dOptions(6, 4, 3).bias(false)),
                                                       torch::nn::BatchNorm1d(4), torch::nn::GroupNorm(2, 4)));
  }
  std::string class_name() const override { return "Convolutions"; }
  at::Tensor forward_impl(at::Tensor x) override { return all->forward(x); }
};
struct Recurrent final : nn::Block<std::vector<at::Tensor>, std::pair<at::Tensor, at::Tensor>> {
  torch::nn::LSTM lstm{nullptr};
  Recurrent() { lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(3, 2).bidirectional(true))); }
  std::string class_name() const override { return "Recurrent"; }
  std::pair<at::Tensor, at::Tensor> forward_impl(std::vector<at::Tensor> in) override {
    auto [out, states] = lstm->forward(in[0]);
    return {out, std::get<1>(states)};
  }
};
/// A number, nothing, a transposed matrix, a cut vector.
struct OddShapes final : nn::Layer {
  at::Tensor scale = register_parameter("scale", at::full({}, 0.5f)),
             none = register_parameter("none", at::zeros({0, 3})),
             turned = register_parameter("turned", fixed_values({4, 4}, 1, 0.5).t()),
             cut = register_parameter("cut", fixed_values({20}, 2, 0.5).slice(0, 1, 17, 4));
  std::string class_name() const override { return "OddShapes"; }
  at::Tensor forward_impl(at::Tensor x) override { return at::linear(x, turned, cut) * scale + none.sum(); }
};
struct OnlyNothing final : nn::Layer {
  at::Tensor none = register_parameter("none", at::zeros({0}));
  std::string class_name() const override { return "OnlyNothing"; }
  at::Tensor forward_impl(at::Tensor x) override { return x + none.sum(); }
};
struct Zoo final : nn::Layer {
  std::shared_ptr<Words> words = register_module("words", std::make_shared<Words>());
  std::shared_ptr<Convolutions> convolutions = register_module("convolutions", std::make_shared<Convolutions>());
  std::shared_ptr<Recurrent> recurrent = register_module("recurrent", std::make_shared<Recurrent>());
  std::shared_ptr<OddShapes> odd = register_module("odd", std::make_shared<OddShapes>());
  std::shared_ptr<OnlyNothing> nothing = register_module("nothing", std::make_shared<OnlyNothing>());
  std::string class_name() const override { return "Zoo"; }
  at::Tensor forward_impl(at::Tensor x) override {
    auto [out, cell] = (*recurrent)({(*convolutions)((*words)(x))});
    return (*nothing)((*odd)(out)) + cell.sum();
  }
};

TEST(UserModules, LibtorchsLayersOddShapesAndSparseGradients) {
  const auto make = [] {
    manual_seed(3);
    return std::make_shared<Zoo>();
  };
  const auto run = [](Zoo& net, int rank) {
    for (int i = 0; i < 2; ++i)
      net((fixed_values({4, 5}, rank + 2.0 * i, 8).abs()).to(at::kLong)).pow(2).sum().backward();
  };
  expect_gradients<Zoo>(make, {"Words", "Convolutions", "Recurrent", "OddShapes", "OnlyNothing"}, run);
  expect_gradients<Zoo>(make, {}, run);
}

using MixedThings = std::tuple<at::Tensor, std::optional<at::Tensor>, std::map<std::string, at::Tensor>, int>;
struct Mixer final : nn::Block<MixedThings, MixedThings> {
  at::Tensor weight = register_parameter("weight", fixed_values({4, 4}, 1, 0.5));
  std::string class_name() const override { return "Mixer"; }
  MixedThings forward_impl(MixedThings in) override {
    auto& [x, extra, named, times] = in;
    x = at::tanh(at::linear(x, weight)) * times;
    if (extra) extra = at::linear(*extra, weight);
    for (auto& [name, t] : named) t = t + x;
    return in;
  }
};
struct MixedNet final : nn::Layer {
  std::shared_ptr<Mixer> first = register_module("first", std::make_shared<Mixer>()),
                         second = register_module("second", std::make_shared<Mixer>());
  torch::nn::Sequential list{nullptr};
  MixedNet() {
    list = register_module("list", torch::nn::Sequential(std::make_shared<OddShapes>(), torch::nn::Linear(4, 4),
                                                         std::make_shared<OddShapes>()));
  }
  std::string class_name() const override { return "MixedNet"; }
  at::Tensor forward_impl(at::Tensor x) override {
    auto [y, extra, named, times] = (*second)((*first)({x, std::nullopt, {{"a", x}, {"b", 2 * x}}, 3}));
    return list->forward(y + named.at("b"));
  }
};

TEST(UserModules, UnitsTakeTuplesAndMapsAndLieInSequentials) {
  const auto make = [] {
    manual_seed(3);
    return std::make_shared<MixedNet>();
  };
  expect_gradients<MixedNet>(make, {"Mixer", "OddShapes"}, [](MixedNet& net, int rank) {
    net(fixed_values({3, 4}, rank, 1)).pow(2).sum().backward();
  });
}

/// With inputs that require grad, so that every unit knows when its backward has ended.
void expect_kept_graph(const std::function<void(SmallNet&, const at::Tensor& x, const at::Tensor& loss)>& run) {
  expect_gradients<SmallNet>([] { return std::make_shared<SmallNet>(); }, {"MlpBlock"},
                             [&](SmallNet& net, int rank) {
                               for (int step = 0; step < 2; ++step) {
                                 const auto x = testing::batch(rank, step).set_requires_grad(true);
                                 run(net, x, testing::loss_of(net(x), rank, step));
                               }
                             });
}

TEST(KeptGraphs, MayHaveAnotherBackward) {
  expect_kept_graph([](SmallNet&, const at::Tensor&, const at::Tensor& loss) {
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
  expect_kept_graph([](SmallNet& net, const at::Tensor& x, const at::Tensor& loss) {  // beside a forward of its own
    loss.backward({}, /*retain_graph=*/true);
    (loss + net(net(x)).pow(2).mean()).backward();
  });
}

TEST(KeptGraphs, GradientsOfInputsMayBeTakenFirst) {
  expect_kept_graph([](SmallNet&, const at::Tensor& x, const at::Tensor& loss) {
    const auto g = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
    (loss * g[0].detach().norm()).backward();
  });
}

TEST(KeptGraphs, GradientPenaltiesAreDifferentiated) {
  expect_kept_graph([](SmallNet&, const at::Tensor& x, const at::Tensor& loss) {
    const auto g = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    (loss + (g[0].norm() - 1).pow(2)).backward();
  });
}

void with_net(const std::function<void(SmallNet&, FullyShardedDataParallel&)>& body) {
  for (auto form : testing::kForms)
    comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      auto sharded = fsdp::fully_shard(net, group, {.wrap = fsdp::wrap_classes({"MlpBlock"}), .gather = form});
      body(net, *sharded);
    });
}
at::Tensor net_loss(SmallNet& net, int step = 0) {
  return testing::loss_of(net(testing::batch(0, step)), 0, step);
}

TEST(FrozenAfterwards, AUnitIsNotStepped) {
  with_net([](SmallNet& net, FullyShardedDataParallel& sharded) {
    optim::AdamW optimizer(sharded.parameters(), fsdp::parameter_slices(sharded), testing::adamw_options());
    const auto step = [&] {
      net_loss(net).backward();
      sharded.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
      return values_of(sharded);
    };
    const auto before = step();
    for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
    const auto frozen = step();
    for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(true);
    const auto after = step();
    for (const auto& [name, t] : before) {
      EXPECT_EQ(at::equal(frozen.at(name), t), name.starts_with("block1.")) << name;
      EXPECT_FALSE(at::equal(after.at(name), frozen.at(name))) << name;
    }
  });
}

TEST(FrozenAfterwards, APartOfAUnitIsRefusedAndSoIsWhatWasFrozenBefore) {
  with_net([](SmallNet& net, FullyShardedDataParallel&) {
    net.blocks[1]->scale.set_requires_grad(false);
    EXPECT_THROW(net_loss(net), ConfigError);
    net.blocks[1]->scale.set_requires_grad(true);
    net_loss(net).backward();
  });
  SmallNet net;
  net.blocks[1]->scale.set_requires_grad(false);
  const auto sharded = fsdp::fully_shard(net, comm::make_solo(), {.wrap = fsdp::wrap_classes({"MlpBlock"})});
  net.blocks[1]->scale.set_requires_grad(true);
  EXPECT_THROW(net_loss(net), ConfigError);
}

TEST(FrozenAfterwards, UnlikeOnTheRanksIsAnError) {
  for (int frozen_elsewhere : {0, 1}) {
    std::vector<std::string> messages(2);
    EXPECT_ANY_THROW(comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      const auto sharded = fsdp::fully_shard(net, group, {.wrap = fsdp::wrap_classes({"MlpBlock"})});
      const int block = group->rank() == 0 ? 0 : 1;
      if (group->rank() == 0 || frozen_elsewhere)
        for (auto& p : net.blocks[block]->parameters()) p.set_requires_grad(false);
      try {
        net_loss(net).backward();
      } catch (const std::exception& e) {
        messages[group->rank()] = e.what();
        throw;
      }
    }));
    for (const auto& message : messages) EXPECT_NE(message, "");
    if (frozen_elsewhere) {
      EXPECT_NE(messages[0].find("have frozen different parameters"), std::string::npos) << messages[0];
    }
  }
}

TEST(ZeroGrad, OfTheModuleClearsShardedGradients) {
  with_net([](SmallNet& net, FullyShardedDataParallel& sharded) {
    net_loss(net).backward();
    const auto once = gradients_of(sharded);
    net.zero_grad();
    net_loss(net).backward();
    for (const auto& [name, g] : gradients_of(sharded)) EXPECT_TRUE(at::equal(g, once.at(name))) << name;
  });
}

TEST(ZeroGrad, ForgetsBackwardPassesThatDidNotSynchronise) {
  with_net([](SmallNet& net, FullyShardedDataParallel& sharded) {
    net_loss(net).backward();
    const auto once = gradients_of(sharded);
    sharded.zero_grad();
    {
      const fsdp::NoSync no_sync(sharded);
      net_loss(net, 1).backward();
    }
    sharded.zero_grad();
    net_loss(net).backward();
    for (const auto& [name, g] : gradients_of(sharded)) EXPECT_TRUE(at::equal(g, once.at(name))) << name;
  });
}

TEST(UpdateFull, BringsNewValuesToMastersAndForwards) {
  const auto halve = [](const std::string&, const at::Tensor& t) { t.mul_(0.5); };
  with_net([&](SmallNet& net, FullyShardedDataParallel& sharded) {
    SmallNet alone;
    const at::NoGradGuard no_grad;
    for (auto& p : alone.parameters()) p.mul_(0.5);
    net_loss(net);
    sharded.update_full(halve);
    EXPECT_TRUE(at::equal(net_loss(net), net_loss(alone)));
    for (const auto& [name, t] : values_of(sharded)) EXPECT_TRUE(at::equal(t, alone.named_parameters()[name])) << name;
  });
}

struct Renormed final : nn::Layer {
  torch::nn::Embedding table{nullptr};
  Renormed() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 4).max_norm(0.1)));
  }
  std::string class_name() const override { return "Renormed"; }
  at::Tensor forward_impl(at::Tensor x) override { return table(x); }
};

TEST(UserModules, AForwardThatWritesToAParameterIsAnError) {
  Renormed net;
  const auto sharded = fsdp::fully_shard(net, comm::make_solo(), {});
  EXPECT_THROW(net(at::arange(5)), Error);
}

struct OneParameter final : nn::Layer {
  at::Tensor weight;
  explicit OneParameter(const at::Tensor& w) { weight = register_parameter("weight", w); }
  std::string class_name() const override { return "OneParameter"; }
  at::Tensor forward_impl(at::Tensor x) override { return x; }
};

TEST(UserModules, WhatCannotBeShardedIsRefusedByName) {
  for (const auto& w : {at::zeros({2}, at::kComplexFloat), at::empty({2}, at::kMeta)}) {
    OneParameter net(w);
    try {
      fsdp::fully_shard(net, comm::make_solo(), {});
      ADD_FAILURE() << w.toString();
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find("'weight'"), std::string::npos) << e.what();
    }
  }
}

TEST(UserModules, AnOptimizerOverTheModulesOwnParametersIsRefused) {
  for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
    SmallNet net;
    const auto sharded = fsdp::fully_shard(net, comm::make_solo(), {.strategy = strategy});
    EXPECT_THROW(optim::AdamW(net.parameters(), testing::adamw_options()), ConfigError);
  }
}

TEST(UserModules, ACopyIsNotAttachedAndAModuleMayGoFirst) {
  auto net = std::make_shared<SmallNet>();
  auto sharded = fsdp::fully_shard(*net, comm::make_solo(), {.wrap = fsdp::wrap_classes({"MlpBlock"})});
  const auto copy = std::make_shared<SmallNet>(*net);
  EXPECT_TRUE(net->hooked());
  EXPECT_FALSE(copy->hooked());
  net_loss(*net).backward();
  net.reset();
  for (const auto& p : sharded->parameters()) EXPECT_TRUE(p.grad().defined());
  EXPECT_THROW(sharded->to_string(), Error);
  sharded.reset();
  EXPECT_ANY_THROW((*copy)(testing::batch(0, 0)));
}

}  // namespace
}  // namespace tessera
