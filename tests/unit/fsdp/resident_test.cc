// Parameters, gradients and optimizer state that stay on the device that computes: the results of the CPU. The device
// is a fake one, whose pointers crash who reads them as the host's.
#include <gtest/gtest.h>

#include "support/fake_device.h"
#include "support/fake_nccl.h"
#include "support/fake_streams.h"
#include "support/program.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"
#include "tessera/optim/grad_scaler.h"

namespace tessera::fsdp {
namespace {

using test::fake_device;
using testing::batch;
using testing::loss_of;
using testing::NetOptions;
using testing::SmallNet;

FsdpOptions resident(FsdpOptions options = {.wrap = wrap_classes({"MlpBlock"})}, int rank = 0) {
  options.device = fake_device(rank);
  options.state_on = StateOn::kDevice;
  return options;
}

struct ResidentRun {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights, grads;  // the second of the first step
  MemoryStats memory;
  std::string shown;
};

struct ResidentHow {
  NetOptions net = {};
  std::function<void(SmallNet&)> prepare = [](SmallNet&) {};
  std::string optimizer = "adamw_torch";
  double p = 2;
  int ranks = 1;
};

/// Three steps of two micro-batches, clipping.
ResidentRun train(const FsdpOptions& wanted, const ResidentHow& how = {}) {
  std::vector<ResidentRun> runs(static_cast<std::size_t>(how.ranks));
  comm::run_threads(how.ranks, [&](std::shared_ptr<comm::Communicator> group) {
    const auto options = wanted.state_on == StateOn::kDevice ? resident(wanted, group->rank()) : wanted;
    auto& run = runs[static_cast<std::size_t>(group->rank())];
    SmallNet net(how.net);
    how.prepare(net);
    const auto sharded = fully_shard(net, group, options);
    const auto optimizer = optim::make_optimizer(how.optimizer, {.lr = 1e-2, .weight_decay = 0.1},
                                                 sharded->parameters(), parameter_slices(*sharded), group);
    optimizer->keep_state_in(sharded->offload_store());
    const bool there = options.state_on == StateOn::kDevice;
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        sharded->set_requires_gradient_sync(micro == 1);
        const auto loss = loss_of(net(batch(group->rank(), 2 * step + micro)), group->rank(), step);
        loss.backward();
        run.losses.push_back(loss.item<double>());
      }
      if (step == 0)
        sharded->visit_full_grads([&](const std::string& name, const at::Tensor& t) { run.grads[name] = t.clone(); });
      run.norms.push_back(step < 2 ? sharded->clip_grad_norm(0.05, *optimizer, how.p)
                                   : sharded->clip_grad_norm(0.05, how.p));
      optimizer->step();
      for (const auto& p : sharded->parameters()) {
        EXPECT_EQ(p.is_cpu(), !there);
        if (p.grad().defined()) {
          EXPECT_EQ(p.grad().is_cpu(), !there);
        }
      }
      if (step == 2) run.memory = sharded->memory();
      optimizer->zero_grad();
    }
    const bool steps_there = there && &optimizer->computing() == optimizer.get();
    for (const auto& s : optimizer->state()) {
      const bool few = s.replicated;  // numbers of the rule's own
      EXPECT_EQ(s.local.is_cpu(), few || !steps_there) << s.state;
    }
    run.shown = sharded->to_string();
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
      EXPECT_TRUE(t.is_cpu()) << name;
      run.weights[name] = t.clone();
    });
  });
  for (const auto& other : runs)
    for (const auto& [name, t] : runs[0].weights)
      EXPECT_TRUE(at::equal(t, other.weights.at(name))) << "ranks differ in " << name;
  return runs[0];
}

void expect_near(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b,
                 double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, t] : a) EXPECT_TRUE(at::allclose(t, b.at(name), tolerance, tolerance)) << name;
}

/// Another rounding of sums and of the optimizer; gradients have the same bits.
void expect_as_on_the_cpu(const FsdpOptions& options, const ResidentHow& how = {}, double tolerance = 2e-6) {
  const auto here = train(options, how), there = train(resident(options), how);
  for (std::size_t i = 0; i < here.losses.size(); ++i) EXPECT_NEAR(here.losses[i], there.losses[i], 10 * tolerance);
  for (std::size_t i = 0; i < here.norms.size(); ++i)
    EXPECT_NEAR(here.norms[i], there.norms[i], 10 * tolerance * here.norms[i]);
  for (const auto& [name, t] : here.grads) EXPECT_TRUE(at::equal(t, there.grads.at(name))) << "gradient of " << name;
  expect_near(here.weights, there.weights, tolerance);
  EXPECT_EQ(test::fake_device_bytes(), 0) << "all of it was given back";
}

TEST(Resident, TrainsAsOnTheCpuUnderEveryStrategy) {
  for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"})};
    expect_as_on_the_cpu(options);
    options.activation_checkpointing = same_as_wrap();
    expect_as_on_the_cpu(options, {.net = {.tied = true, .unused = true, .twice = true}});
  }
}

TEST(Resident, SeveralRanksTrainAsOnTheCpuUnderEveryStrategy) {
  for (const int ranks : {2, 3, 4})
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
                          ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2}) {
      FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"})};
      if (strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2) {
        if (ranks != 4) continue;
        options.shard_group_size = 2;
      }
      SCOPED_TRACE(std::to_string(ranks) + " ranks, strategy " + std::to_string(static_cast<int>(strategy)));
      expect_as_on_the_cpu(options, {.ranks = ranks});
      options.activation_checkpointing = same_as_wrap();
      expect_as_on_the_cpu(options, {.net = {.tied = true, .unused = true, .twice = true}, .ranks = ranks});
    }
}

TEST(Resident, SeveralRanksTrainAsOnTheCpuOverNccl) {
  const test::FakeNccl nccl;
  const test::FakeKernels kernels;
  const test::FakeStreams streams(11);
  ::setenv("TESSERA_DEVICE_TRANSPORT", "nccl", 1);
  for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard}) {
    FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"})};
    if (strategy == ShardingStrategy::kHybridShard) options.shard_group_size = 2;
    expect_as_on_the_cpu(options, {.net = {.tied = true, .twice = true}, .ranks = 4});
  }
  ::unsetenv("TESSERA_DEVICE_TRANSPORT");
  EXPECT_EQ(test::FakeNccl::open_communicators(), 0);
}

TEST(Resident, SeveralRanksFreezeAndComputeInLowPrecision) {
  const auto freeze = [](SmallNet& net) {
    for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
  };
  FsdpOptions options{.wrap = wrap_classes({"MlpBlock"})};
  options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat};
  expect_as_on_the_cpu(options, {.prepare = freeze, .ranks = 2}, 1e-3);
}

TEST(Resident, FrozenParametersLowPrecisionAndIgnoredModules) {
  const auto freeze = [](SmallNet& net) {
    for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
    net.stem->weight.set_requires_grad(false);
  };
  FsdpOptions options{.wrap = wrap_classes({"MlpBlock"})};
  options.ignored_modules = named_like("block0\\.up|head");
  expect_as_on_the_cpu(options, {.prepare = freeze});
  options.ignored_modules = nullptr;
  options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat};
  expect_as_on_the_cpu(options, {.prepare = freeze}, 1e-3);
  options.precision.reduce_dtype = at::kBFloat16;
  expect_as_on_the_cpu(options, {.net = {.tied = true}}, 1e-3);
}

TEST(Resident, EveryRuleThatTreatsElementsAlone) {
  for (const char* name :
       {"adamw_torch", "sgd", "lion_32bit", "rmsprop", "adagrad", "adam", "schedule_free_adamw", "schedule_free_sgd",
        "schedule_free_radam", "adamw_bnb_8bit", "ademamix", "rmsprop_bnb", "lion_8bit", "adamw_torch_4bit"})
    expect_as_on_the_cpu({.wrap = wrap_classes({"MlpBlock"})}, {.optimizer = name}, 1e-5);
}

TEST(Resident, OptimizersThatComputeOnTheCpuStepThere) {
  for (const char* name :
       {"adafactor", "galore_adamw_8bit", "lorafa", "stable_adamw", "grokadamw", "adamw_anyprecision"})
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(name);
      expect_as_on_the_cpu({.wrap = wrap_classes({"MlpBlock"})}, {.optimizer = name, .ranks = ranks}, 1e-5);
    }
}

TEST(Resident, NormsOfEveryOrder) {
  for (double p : {1.0, 3.0, std::numeric_limits<double>::infinity()})
    expect_as_on_the_cpu({.wrap = wrap_classes({"MlpBlock"})}, {.p = p});
}

TEST(Resident, WeightsOfAFileAreReadThereAndNotMapped) {
  SmallNet original;
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (auto& p : original.named_parameters()) values.emplace_back(p.key(), p.value().detach().clone());
  FsdpOptions options{.wrap = wrap_classes({"MlpBlock"})};
  options.source = io::memory_source(values);
  const auto freeze = [](SmallNet& net) { net.stem->weight.set_requires_grad(false); };
  expect_as_on_the_cpu(options, {.prepare = freeze});
  EXPECT_EQ(train(resident(options), {.prepare = freeze}).memory.mapped_bytes, 0);
}

TEST(Resident, ParametersAreThereOnceInFloat32AndGatheredNowhere) {
  const auto run = train(resident());
  EXPECT_EQ(run.memory.device_bytes, run.memory.shard_bytes + run.memory.gradient_shard_bytes);
  EXPECT_EQ(run.memory.gradient_shard_bytes, run.memory.shard_bytes) << "all train";
  EXPECT_EQ(run.memory.gathered_bytes, 0);
  EXPECT_SAYS(run.shown, "where their parameters, gradients and optimizer state lie, too");
}

TEST(Resident, TheScalerFindsInfinitiesThere) {
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    for (const bool infinite : {false, true}) {
      SmallNet net;
      const auto sharded = fully_shard(net, group, resident());
      optim::AdamW optimizer(sharded->parameters(), parameter_slices(*sharded), testing::adamw_options());
      optim::GradScaler scaler({.init_scale = 4});
      scaler.scale(loss_of(net(batch(0, 0)), 0, 0)).backward();
      auto grad = sharded->parameters()[0].grad();
      const auto before = grad.cpu();
      if (infinite) grad[0].fill_(std::numeric_limits<float>::infinity());
      EXPECT_EQ(scaler.unscale(optimizer, *group), !infinite);
      if (!infinite) {
        EXPECT_TRUE(at::equal(before / 4, grad.cpu()));
      }
    }
  });
}

TEST(Resident, WhatItCannotDoIsSaidBeforeAnythingIsAllocated) {
  const auto refusal = [](int world, const std::function<void(FsdpOptions&)>& change) {
    std::string said = "nothing";
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      auto options = resident();
      change(options);
      try {
        fully_shard(net, group, options);
      } catch (const ConfigError& e) {
        if (group->rank() == 0) said = e.what();
      }
    });
    EXPECT_EQ(test::fake_device_bytes(), 0);
    return said;
  };
  EXPECT_SAYS(refusal(1, [](FsdpOptions& o) { o.offload_folder = "/var/tmp"; }), "fsdp_offload_folder");
  EXPECT_SAYS(refusal(1, [](FsdpOptions& o) { o.gather = GatherForm::kCopy; }), "gather forms");
}

}  // namespace
}  // namespace tessera::fsdp
