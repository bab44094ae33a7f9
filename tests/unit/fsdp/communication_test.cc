// Exact numbers of collectives and bytes, by strategy.
#include <gtest/gtest.h>

#include "fsdp/plan/flat_layout.h"
#include "support/train_small_net.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::loss_of;
using testing::SmallNet;
using testing::train_sharded;

constexpr int kSteps = 3, kBlocks = 3, kWorld = 2;

CommStats stats_of(ShardingStrategy strategy, GatherForm gather) {
  return train_sharded(kWorld, {.blocks = kBlocks},
                       {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = gather},
                       {.steps = kSteps})[1]
      .stats;
}

TEST(CommunicationCounts, FullShardGathersEachBlockTwiceAndTheRootOnce) {
  for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
    const auto stats = stats_of(ShardingStrategy::kFullShard, form);
    EXPECT_EQ(stats.gathers, kSteps * (2 * kBlocks + 1));
    EXPECT_EQ(stats.reductions, kSteps * (kBlocks + 1));
  }
}

TEST(CommunicationCounts, ShardGradOpGathersOnce) {
  const auto stats = stats_of(ShardingStrategy::kShardGradOp, GatherForm::kCopy);
  EXPECT_EQ(stats.gathers, kSteps * (kBlocks + 1));
  EXPECT_EQ(stats.reductions, kSteps * (kBlocks + 1));
}

TEST(CommunicationCounts, NoShardNeverGathers) {
  const auto stats = stats_of(ShardingStrategy::kNoShard, GatherForm::kAuto);
  EXPECT_EQ(stats.gathers, 0);
  EXPECT_EQ(stats.reductions, kSteps * (kBlocks + 1));
}

std::int64_t padded(std::vector<std::int64_t> numels) {
  std::vector<ParameterSpec> specs;
  for (auto n : numels) specs.push_back({"p", {n}, at::kFloat, at::kFloat, true, false});
  return make_segments(specs, kWorld).front().numel;
}

// scale, up.weight, up.bias, down.weight, down.bias; stem and head
const std::int64_t kBlock = padded({1, 77, 11, 77, 7}), kRoot = padded({42, 7, 42, 6});

TEST(CommunicationCounts, NumelIsThatOfThePaddedUnits) {
  const auto stats = stats_of(ShardingStrategy::kFullShard, GatherForm::kCopy);
  EXPECT_EQ(stats.gathered_numel, kSteps * (2 * kBlocks * kBlock + kRoot));
  EXPECT_EQ(stats.reduced_numel, kSteps * (kBlocks * kBlock + kRoot));
}

TEST(CommunicationCounts, FrozenParametersAreNotReduced) {
  auto freeze_up = [](SmallNet& net) {
    for (auto& b : net.blocks) b->up->weight.set_requires_grad(false);
    net.stem->weight.set_requires_grad(false);
    net.stem->bias.set_requires_grad(false);
  };
  const auto stats =
      train_sharded(kWorld, {}, {.wrap = wrap_classes({"MlpBlock"})}, {.steps = kSteps, .prepare = freeze_up})[0].stats;
  EXPECT_EQ(stats.reduced_numel, kSteps * (kBlocks * padded({1, 11, 77, 7}) + padded({42, 6})));
}

TEST(Memory, CopyFormHoldsTheRootAndTwoBlocksAtMost) {
  comm::run_threads(kWorld, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"}), .gather = GatherForm::kCopy});
    const auto shard = (kRoot + kBlocks * kBlock) / kWorld * 4;
    EXPECT_EQ(sharded->memory().shard_bytes, shard);
    EXPECT_EQ(sharded->memory().gradient_shard_bytes, 0);
    auto loss = loss_of(net(batch(group->rank(), 0)), group->rank(), 0);
    EXPECT_EQ(sharded->memory().gathered_bytes, kRoot * 4);
    EXPECT_EQ(sharded->memory().peak_gathered_bytes, (kRoot + kBlock) * 4);
    loss.backward();
    const auto after = sharded->memory();
    EXPECT_EQ(after.gathered_bytes, 0);
    EXPECT_EQ(after.peak_gathered_bytes, (kRoot + 2 * kBlock) * 4);
    EXPECT_EQ(after.gradient_shard_bytes, shard);
    EXPECT_EQ(after.gradient_buffer_bytes, 0);
    EXPECT_EQ(after.shard_bytes, shard);
  });
}

TEST(Memory, WithoutPrefetchOnlyOneBlockIsGathered) {
  comm::run_threads(kWorld, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group,
                               {.wrap = wrap_classes({"MlpBlock"}),
                                .gather = GatherForm::kCopy,
                                .backward_prefetch = BackwardPrefetch::kNone});
    loss_of(net(batch(group->rank(), 0)), group->rank(), 0).backward();
    EXPECT_EQ(sharded->memory().peak_gathered_bytes, (kRoot + kBlock) * 4);
  });
}

TEST(Memory, FrozenSegmentsHaveNoGradientsAndSharedFormNoCopies) {
  comm::run_threads(kWorld, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    for (auto& p : net.parameters()) p.set_requires_grad(false);
    net.blocks[1]->scale.set_requires_grad(true);
    auto sharded = fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"}), .gather = GatherForm::kShared});
    loss_of(net(batch(group->rank(), 0)), group->rank(), 0).backward();
    const auto m = sharded->memory();
    EXPECT_EQ(m.gathered_bytes, 0);
    EXPECT_EQ(m.peak_gathered_bytes, 0);
    EXPECT_EQ(m.gradient_shard_bytes, padded({1}) / kWorld * 4);
    EXPECT_EQ(m.gradient_buffer_bytes, 4096);  // one slot, a page
    EXPECT_EQ(sharded->parameters().size(), 1u);
  });
}

}  // namespace
}  // namespace tessera::fsdp
