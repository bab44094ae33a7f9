// Frozen parameters, accumulation, clipping, ranks that run different units.
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

using testing::adamw_options;
using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::MlpBlock;
using testing::NetOptions;
using testing::SmallNet;
using testing::train_alone;
using testing::train_sharded;
using testing::Training;
using testing::TrainOptions;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(TrainingVariants, FrozenAndTrainableInOneUnit) {
  const TrainOptions how{.prepare = [](SmallNet& net) {
    net.stem->weight.set_requires_grad(false);
    net.blocks[0]->up->weight.set_requires_grad(false);
    net.blocks[0]->scale.set_requires_grad(false);
    for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
  }};
  for (int world : {1, 2, 3})
    for (auto form : kForms) {
      const auto ranks = train_sharded(world, {}, {.wrap = wrap_classes({"MlpBlock"}), .gather = form}, how);
      EXPECT_LE(worst_difference(ranks[0], train_alone(world, {}, how)), 1e-6);
      EXPECT_EQ(ranks[0].memory.gathered_bytes, 0) << "a unit without trainable parameters is released too";
    }
}

TEST(TrainingVariants, ClipsLikeOneProcessForEveryNorm) {
  for (double p : {1.0, 2.0, 3.0, kInfinity})
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
      const TrainOptions how{.clip = 0.05, .p = p};
      const auto alone = train_alone(3, {}, how);
      const auto ranks = train_sharded(3, {}, {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"})}, how);
      EXPECT_LE(worst_difference(ranks[0], alone), 2e-6) << p;
      for (std::size_t i = 0; i < alone.norms.size(); ++i)
        EXPECT_NEAR(ranks[2].norms[i], alone.norms[i], 2e-6 * alone.norms[i]);
    }
}

TEST(TrainingVariants, ClippingInTheOptimizersStepGivesTheSameBits) {
  TrainOptions how{.clip = 0.05};
  const auto before = train_sharded(2, {}, {.wrap = wrap_classes({"MlpBlock"})}, how);
  how.clip_in_step = true;
  const auto within = train_sharded(2, {}, {.wrap = wrap_classes({"MlpBlock"})}, how);
  EXPECT_EQ(before[0].norms, within[0].norms);
  EXPECT_GT(before[0].norms[0], how.clip);
  EXPECT_EQ(worst_difference(before[0], within[0]), 0);
}

/// Two micro-batches a step; `mode` says what happens between them.
std::map<std::string, at::Tensor> accumulate(GatherForm form, ShardingStrategy strategy, bool no_sync,
                                             const MixedPrecision& precision = {}) {
  std::map<std::string, at::Tensor> grads;
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(
        net, group, {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .precision = precision, .gather = form});
    for (int round = 0; round < 2; ++round) {
      sharded->zero_grad();
      sharded->set_requires_gradient_sync(!no_sync);
      loss_of(net(batch(group->rank(), 0)), group->rank(), 0).backward();
      EXPECT_EQ(sharded->comm_stats().reductions > 0, !no_sync || round > 0);
      sharded->set_requires_gradient_sync(true);
      loss_of(net(batch(group->rank(), 1)), group->rank(), 1).backward();
    }
    sharded->visit_full_grads([&](const std::string& name, const at::Tensor& g) {
      if (group->rank() == 0) grads[name] = g.clone();
    });
  });
  return grads;
}

TEST(TrainingVariants, AccumulationWithAndWithoutSyncEqualsTheSumOfGradients) {
  std::map<std::string, at::Tensor> expected;
  SmallNet net;
  for (int rank = 0; rank < 2; ++rank)
    for (int step = 0; step < 2; ++step) (loss_of(net(batch(rank, step)), rank, step) / 2).backward();
  for (auto& p : net.named_parameters()) expected[p.key()] = p.value().grad();
  for (auto form : kForms)
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
      for (bool no_sync : {false, true}) {
        const auto got = accumulate(form, strategy, no_sync);
        ASSERT_EQ(got.size(), expected.size());
        for (const auto& [name, g] : got) EXPECT_TRUE(at::allclose(g, expected[name], 1e-5, 1e-6)) << name;
      }
}

// Shared slots then hold gradients as they were computed, in bfloat16, but sums of several backward passes in float32.
TEST(TrainingVariants, LowPrecisionGradientsAreSummedInTheReduceDtypeInBothForms) {
  for (auto precision : {MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat},
                         MixedPrecision{.param_dtype = at::kHalf, .reduce_dtype = at::kFloat}})
    for (bool no_sync : {false, true}) {
      const auto copied = accumulate(GatherForm::kCopy, ShardingStrategy::kFullShard, no_sync, precision),
                 shared = accumulate(GatherForm::kShared, ShardingStrategy::kFullShard, no_sync, precision);
      ASSERT_FALSE(copied.empty());
      for (const auto& [name, g] : copied) EXPECT_TRUE(at::equal(g, shared.at(name))) << name << no_sync;
    }
}

TEST(TrainingVariants, InLowPrecisionRanksThatAccumulatedUnlikeAreTold) {
  comm::run_threads(2, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(
        net, group,
        {.wrap = wrap_classes({"MlpBlock"}), .precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
    const auto backward = [&](int step) { loss_of(net(batch(group->rank(), step)), group->rank(), step).backward(); };
    if (group->rank() == 0) {
      sharded->set_requires_gradient_sync(false);
      backward(0);
      sharded->set_requires_gradient_sync(true);
    }
    try {
      backward(1);
      ADD_FAILURE() << "rank " << group->rank();
    } catch (const CommError& e) {
      EXPECT_NE(std::string(e.what()).find("Ranks disagree"), std::string::npos) << e.what();
    }
  });
}

TEST(TrainingVariants, TheGradientDivisorReplacesTheWorldSize) {
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet a, b;
    auto average = fully_shard(a, group, {}), sum = fully_shard(b, group, {});
    sum->set_gradient_divisor(1);
    loss_of(a(batch(group->rank(), 0)), group->rank(), 0).backward();
    loss_of(b(batch(group->rank(), 0)), group->rank(), 0).backward();
    EXPECT_TRUE(at::equal(average->parameters()[0].grad() * 2, sum->parameters()[0].grad()));
  });
}

// In the shared form gathering is no communication, so ranks may run different units; in the copy form they may not.
/// Another block runs when `pause` returns.
class PausedNet final : public nn::Layer {
 public:
  PausedNet() {
    first = register_module("first", std::make_shared<MlpBlock>(6, 11, 3));
    second = register_module("second", std::make_shared<MlpBlock>(6, 11, 5));
  }
  std::string class_name() const override { return "PausedNet"; }
  std::shared_ptr<MlpBlock> first, second;
  std::function<void()> pause = [] {};

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    x = (*first)(x);
    pause();
    return (*second)(x);
  }
};

/// What two ranks compute after a backward, of which rank 1 is so slow that rank 0 could step meanwhile.
std::vector<at::Tensor> outputs_before_a_step(MixedPrecision precision) {
  std::promise<void> rank_0_stepped;
  const auto stepped = rank_0_stepped.get_future().share();
  std::vector<at::Tensor> outputs(2);
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    PausedNet net;
    const auto sharded = fully_shard(
        net, group, {.wrap = wrap_classes({"MlpBlock"}), .precision = precision, .gather = GatherForm::kShared});
    optim::AdamW optimizer(sharded->parameters(), {.lr = 1e-1});
    optimizer.keep_state_in(sharded->offload_store());
    net(batch(0, 0)).sum().backward();
    optimizer.step();  // the next forward divides masters in two
    optimizer.zero_grad();
    net(batch(0, 0)).sum().backward();
    if (group->rank() == 1) net.pause = [&] { stepped.wait_for(std::chrono::milliseconds(100)); };
    {
      const at::NoGradGuard no_grad;
      outputs[static_cast<std::size_t>(group->rank())] = net(batch(0, 0));
    }
    optimizer.step();
    if (group->rank() == 0) rank_0_stepped.set_value();
  });
  return outputs;
}

TEST(TrainingVariants, AStepWaitsForForwardsOfOtherRanksBetweenBackwardAndIt) {
  for (const MixedPrecision& precision : {MixedPrecision{}, MixedPrecision{.param_dtype = at::kBFloat16}}) {
    const auto outputs = outputs_before_a_step(precision);
    EXPECT_TRUE(at::equal(outputs[0], outputs[1])) << "rank 0 stepped while rank 1 read";
  }
}

TEST(TrainingVariants, ARankThatSkipsAUnitContributesZeros) {
  for (int skipped = 0; skipped < 3; ++skipped) {
    const TrainOptions how{.before_step = [skipped](SmallNet& net, int rank, int step) {
      net.options.skip = rank == step % 2 ? skipped : -1;
    }};
    const auto ranks =
        train_sharded(2, {}, {.wrap = wrap_classes({"MlpBlock", "Affine"}), .gather = GatherForm::kShared}, how);
    EXPECT_LE(worst_difference(ranks[0], train_alone(2, {}, how)), 1e-6) << skipped;
    EXPECT_EQ(worst_difference(ranks[0], ranks[1]), 0.0);
  }
}

TEST(TrainingVariants, InTheCopyFormRanksThatRunDifferentUnitsAreTold) {
  const TrainOptions how{.before_step = [](SmallNet& net, int rank, int) { net.options.skip = rank; }};
  EXPECT_THROW(train_sharded(2, {}, {.wrap = wrap_classes({"MlpBlock"}), .gather = GatherForm::kCopy}, how), Error);
}

TEST(TrainingVariants, RecomputationInsideAndAroundAUnitGathersTwice) {
  const NetOptions net{.checkpoint = true};
  const TrainOptions how{.steps = 3};
  const auto alone = train_alone(2, net, how);
  for (auto form : kForms)
    for (const char* unit : {"CheckpointedBlock", "MlpBlock"}) {
      const auto ranks = train_sharded(2, net, {.wrap = wrap_classes({unit}), .gather = form}, how);
      EXPECT_LE(worst_difference(ranks[0], alone), 1e-6) << unit;
      EXPECT_EQ(ranks[0].stats.gathers, 3 * (1 + 3 * 2)) << unit;
      EXPECT_EQ(ranks[0].stats.reductions, 3 * 4);
      EXPECT_EQ(ranks[0].memory.gathered_bytes, 0);
    }
}

TEST(TrainingVariants, BackwardPrefetchDoesNotChangeTheBits) {
  const auto pre = train_sharded(2, {}, {.wrap = wrap_classes({"MlpBlock"}), .gather = GatherForm::kCopy});
  for (auto prefetch : {BackwardPrefetch::kNone, BackwardPrefetch::kPost}) {
    const auto other = train_sharded(
        2, {}, {.wrap = wrap_classes({"MlpBlock"}), .gather = GatherForm::kCopy, .backward_prefetch = prefetch});
    EXPECT_EQ(worst_difference(pre[0], other[0]), 0.0);
    EXPECT_EQ(pre[0].stats.gathers, other[0].stats.gathers);
  }
}

}  // namespace
}  // namespace tessera::fsdp
