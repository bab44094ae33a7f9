// Masters beside bfloat16 copies as the bits that those lack: the same training in less memory.
#include <gtest/gtest.h>

#include "support/train_small_net.h"
#include "tessera/optim/factory.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::loss_of;
using testing::SmallNet;

struct SplitRun {
  std::map<std::string, at::Tensor> weights;
  std::int64_t shard_bytes = 0;
};

FsdpOptions in_bfloat16(ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  return {.strategy = strategy,
          .wrap = wrap_classes({"MlpBlock"}),
          .precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat},
          .gather = GatherForm::kShared};
}

using Between = std::function<void(FullyShardedDataParallel&, int step)>;

/// Six steps on two ranks; `between` is called before each optimizer step.
SplitRun train(const FsdpOptions& options, bool split, const std::string& rule = "adamw_torch",
               const Between& between = nullptr) {
  SplitRun run;
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, options);
    auto optimizer = optim::make_optimizer(rule, {.lr = 1e-2, .weight_decay = 0.1}, sharded->parameters(),
                                           parameter_slices(*sharded), sharded->shard_group());
    if (split) optimizer->keep_state_in(sharded->offload_store());
    for (int step = 0; step < 6; ++step) {
      loss_of(net(batch(group->rank(), step)), group->rank(), step).backward();
      if (between) between(*sharded, step);
      optimizer->step();
      optimizer->zero_grad();
    }
    if (group->rank() == 0) run.shard_bytes = sharded->memory().shard_bytes;
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
      if (group->rank() == 0) run.weights[name] = t.clone();
    });
  });
  return run;
}

void expect_same_bits(const SplitRun& a, const SplitRun& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, t] : a.weights) EXPECT_TRUE(at::equal(t, b.weights.at(name))) << name;
}

using Body = std::function<void(SmallNet&, FullyShardedDataParallel&, optim::Optimizer&)>;

/// On each of these ranks, with an optimizer that takes halves.
void with_halves(int world, const Body& body) {
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, in_bfloat16());
    optim::AdamW optimizer(sharded->parameters());
    optimizer.keep_state_in(sharded->offload_store());
    body(net, *sharded, optimizer);
  });
}

TEST(SplitMaster, TrainsAsAWholeMasterDoesInTwoThirdsOfTheMemory) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
    for (const std::string rule :
         {"adamw_torch", "lion_32bit", "adagrad", "sgd", "rmsprop", "adafactor", "torch_adafactor"}) {
      const auto whole = train(in_bfloat16(strategy), false, rule), split = train(in_bfloat16(strategy), true, rule);
      for (const auto& [name, t] : whole.weights) {
        EXPECT_EQ(t.scalar_type(), at::kFloat);
        EXPECT_LE((t - split.weights.at(name)).abs().max().item<double>(), 1e-6) << rule << ", " << name;
      }
      EXPECT_EQ(split.shard_bytes * 6, whole.shard_bytes * 4) << rule;
    }
}

TEST(SplitMaster, LookingAtShardsBetweenStepsChangesNothing) {
  const auto look = [](FullyShardedDataParallel& sharded, int step) {
    if (step % 2 == 0 || sharded.group().rank() == 1)  // ranks need not do the same
      for (const auto& view : sharded.shards()) view.local.sum();
  };
  expect_same_bits(train(in_bfloat16(), true, "adamw_torch", look), train(in_bfloat16(), true));
}

TEST(SplitMaster, AnUnchangedLookGivesItsMemoryBackAtTheNextForward) {
  with_halves(1, [](SmallNet& net, FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
    const auto whole = sharded.memory().shard_bytes;
    net(batch(0, 0));
    const auto split = sharded.memory().shard_bytes;
    EXPECT_LT(split, whole);
    sharded.shards();
    EXPECT_EQ(sharded.memory().shard_bytes, whole + split - whole / 3) << "halves, and the whole beside them";
    net(batch(0, 0));
    EXPECT_EQ(sharded.memory().shard_bytes, split);
    loss_of(net(batch(0, 0)), 0, 0).backward();
    optimizer.step();
    sharded.visit_full([](const std::string&, const at::Tensor&) {});
    EXPECT_EQ(sharded.memory().shard_bytes, split) << "a unit at a time, also before what was written is published";
  });
}

// A save in the background reads them during the next steps.
TEST(SplitMaster, ValuesThatSomebodyHoldsOutliveTheNextStep) {
  with_halves(2, [](SmallNet& net, FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
    const int rank = sharded.group().rank();
    for (int step = 0; step < 3; ++step) {
      const auto views = sharded.shards();
      std::vector<at::Tensor> before;
      for (const auto& view : views) before.push_back(view.local.clone());
      loss_of(net(batch(rank, step)), rank, step).backward();
      optimizer.step();
      optimizer.zero_grad();
      net(batch(rank, step));
      for (std::size_t i = 0; i < views.size(); ++i)
        EXPECT_TRUE(at::equal(views[i].local, before[i])) << views[i].name << ", step " << step;
    }
  });
}

TEST(SplitMaster, WhatIsWrittenToShardsCounts) {
  const auto reset = [](FullyShardedDataParallel& sharded, int step) {
    if (step != 3) return;
    at::NoGradGuard no_grad;
    for (auto& view : sharded.shards()) view.local.fill_(0.25 + 1e-5);
    sharded.mark_updated();
  };
  const auto whole = train(in_bfloat16(), false, "sgd", reset), split = train(in_bfloat16(), true, "sgd", reset);
  for (const auto& [name, t] : whole.weights)
    EXPECT_LE((t - split.weights.at(name)).abs().max().item<double>(), 1e-6) << name;
}

TEST(SplitMaster, ReadingParametersWithoutMemorySaysWhatToDo) {
  with_halves(2, [](SmallNet& net, FullyShardedDataParallel& sharded, optim::Optimizer&) {
    net(batch(0, 0));
    try {
      sharded.parameters().front().detach().sum();
      FAIL() << "there is nothing to read";
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find("read them through shards() or visit_full()"), std::string::npos)
          << e.what();
    }
  });
}

TEST(SplitMaster, IsForBfloat16InSharedMemory) {
  const auto home_of = [](FsdpOptions options) {
    bool any = false;
    comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      any = fully_shard(net, group, options)->offload_store() != nullptr;
    });
    return any;
  };
  auto options = in_bfloat16();
  EXPECT_TRUE(home_of(options));
  options.gather = GatherForm::kCopy;
  EXPECT_FALSE(home_of(options)) << "no copy for the computation stays";
  options.gather = GatherForm::kShared;
  options.precision.param_dtype = at::kHalf;
  EXPECT_FALSE(home_of(options));
  options.precision.param_dtype = std::nullopt;
  EXPECT_FALSE(home_of(options));
}

}  // namespace
}  // namespace tessera::fsdp
