// States of 8-bit optimizers: every kind of checkpoint goes on bit for bit, at any number of ranks.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/torch_state.h"
#include "checkpoint/training_state.h"
#include "support/fake_device.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tessera/optim/factory.h"

namespace tessera {
namespace {

using checkpoint::TorchStateType;
using testing::SmallNet;
using Weights = std::map<std::string, at::Tensor>;

struct Sharding {
  int world;
  fsdp::ShardingStrategy strategy = fsdp::ShardingStrategy::kFullShard;
  bool low_precision = false, offloaded = false;
  bool resident = false;  // all of it on made-up devices
};

/// Which files; nothing: training_state.
using Kind = std::optional<TorchStateType>;

class BlockState : public ::testing::Test {
 protected:
  std::string folder_of(Kind kind) const {  // readers take the first kind that they find
    return folder_.path() + (kind ? "/" + std::to_string(static_cast<int>(*kind)) : "/training_state");
  }
  void save(fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer, Kind kind) {
    const auto folder = folder_of(kind);
    std::filesystem::create_directories(folder);
    if (!kind) return checkpoint::save_training_state(sharded, optimizer, folder);
    checkpoint::SaveQueue now;
    checkpoint::push_torch_model(sharded, folder, *kind, nullptr, now);
    checkpoint::push_torch_optimizer(sharded, optimizer, {}, folder, *kind, nullptr, now);
    checkpoint::throw_failure_of_any(sharded.group(), now.take_failure(), folder);
  }
  void load(fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer, Kind kind) {
    kind ? checkpoint::load_torch_state(sharded, &optimizer, {}, folder_of(kind))
         : checkpoint::load_training_state(sharded, &optimizer, folder_of(kind));
  }

  /// The net is small: blocks begin at 16 elements, so some of its parameters have codes and some have not. Every rank
  /// has the same batch, so that worlds of 1 and 2 have gradients of the same bits (three equal terms need not).
  Weights run(const Sharding& how, int first, int last, Kind kind = {}, const std::string& name = "adamw_8bit") {
    Weights weights;
    comm::run_threads(how.world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet model(testing::NetOptions{});
      fsdp::FsdpOptions options{.strategy = how.strategy,
                                .shard_group_size = how.strategy == fsdp::ShardingStrategy::kHybridShard ? 1 : 0,
                                .wrap = fsdp::wrap_classes({"MlpBlock"}),
                                .offload_folder = how.offloaded ? disk_.path() : ""};
      if (how.resident) {
        options.device = test::fake_device(group->rank());
        options.state_on = fsdp::StateOn::kDevice;
      }
      if (how.low_precision) options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
      auto sharded = fsdp::fully_shard(model, group, options);
      const auto optimizer =
          optim::make_optimizer(name, {.lr = 1e-2, .weight_decay = 0.1, .optim_args = "min_8bit_size=16"},
                                sharded->parameters(), fsdp::parameter_slices(*sharded), sharded->shard_group());
      optimizer->keep_state_in(sharded->offload_store());
      if (first > 0) load(*sharded, *optimizer, kind);
      for (int step = first; step < last; ++step) {
        const auto x = testing::batch(0, step);
        testing::loss_of(model(how.resident ? x.to(options.device) : x), 0, step).backward();
        optimizer->step();
        optimizer->zero_grad();
      }
      if (first == 0 && last < kSteps) save(*sharded, *optimizer, kind);
      sharded->visit_full([&](const std::string& parameter, const at::Tensor& t) {
        if (group->rank() == 0) weights[parameter] = t.detach().to(at::kCPU, t.scalar_type(), false, true);
      });
    });
    return weights;
  }
  static void expect_equal(const Weights& a, const Weights& b, const std::string& what) {
    for (const auto& [name, t] : a) EXPECT_TRUE(at::equal(t, b.at(name))) << what << ' ' << name;
  }

  static constexpr int kSteps = 6;
  const test::TempFolder folder_{"block_state"};
  const test::TempFolder disk_ = test::TempFolder::on_disk("block_state");
};

TEST_F(BlockState, ShardedTrainingHasTheBitsOfOneProcess) {
  using enum fsdp::ShardingStrategy;
  for (const char* name : {"adamw_8bit", "paged_lion_8bit", "ademamix_8bit"}) {
    const auto one = run({1}, 0, kSteps, {}, name);
    for (const Sharding& how : std::vector<Sharding>{
             {2}, {2, kShardGradOp}, {2, kNoShard}, {2, kHybridShard}, {.world = 2, .offloaded = true}})
      expect_equal(one, run(how, 0, kSteps, {}, name), name + std::to_string(how.world));
  }
}

TEST_F(BlockState, EveryKindOfCheckpointContinuesBitEqual) {
  for (const Kind kind :
       {Kind{}, Kind{TorchStateType::kFull}, Kind{TorchStateType::kSharded}, Kind{TorchStateType::kLocal}}) {
    const auto through = run({2}, 0, kSteps);
    run({2}, 0, 3, kind);
    for (const int world : {1, 2})
      expect_equal(through, run({world}, 3, kSteps, kind),
                   (kind ? std::to_string(static_cast<int>(*kind)) : "training_state") + std::to_string(world));
  }
}

TEST_F(BlockState, WhatLiesOnADeviceGoesOnThereAndOnTheCpu) {
  const auto expect_near = [](const Weights& a, const Weights& b) {
    for (const auto& [name, t] : a) EXPECT_TRUE(at::allclose(t, b.at(name), 0, 2e-3)) << name;  // of steps of 1e-2
  };
  for (const int world : {1, 2}) {
    const Sharding there{.world = world, .resident = true};
    const auto on_cpu = run({world}, 0, kSteps), through = run(there, 0, kSteps);
    expect_near(on_cpu, through);
    for (const Kind kind : {Kind{}, Kind{TorchStateType::kFull}, Kind{TorchStateType::kSharded}}) {
      run(there, 0, 3, kind);
      expect_equal(through, run(there, 3, kSteps, kind), "there, on " + std::to_string(world));
      expect_near(on_cpu, run({world}, 3, kSteps, kind));
    }
  }
}

TEST_F(BlockState, AnOddNumberOfRanksWritesWhatOthersRead) {
  for (const Kind kind : {Kind{}, Kind{TorchStateType::kFull}, Kind{TorchStateType::kSharded}}) {
    run({3}, 0, 3, kind, "ademamix_8bit");
    const auto one = run({1}, 3, kSteps, kind, "ademamix_8bit");
    expect_equal(one, run({2}, 3, kSteps, kind, "ademamix_8bit"), "from 3");
  }
}

TEST_F(BlockState, MastersInHalvesTrainAndContinue) {
  const auto through = run({.world = 2, .low_precision = true}, 0, kSteps);
  run({.world = 2, .low_precision = true}, 0, 3);
  expect_equal(through, run({.world = 2, .low_precision = true}, 3, kSteps), "halves");
  expect_equal(through, run({.world = 1, .low_precision = true}, 3, kSteps), "halves on 1");
}

}  // namespace
}  // namespace tessera
