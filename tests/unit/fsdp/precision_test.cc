#include <gtest/gtest.h>

#include "support/train_small_net.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::loss_of;
using testing::SmallNet;
using testing::train_alone;
using testing::train_sharded;
using testing::TrainOptions;

FsdpOptions mixed(GatherForm form, MixedPrecision precision, ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  return {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .precision = precision, .gather = form};
}

TEST(Precision, Bf16ComputeKeepsFp32MastersAndStaysCloseToFp32) {
  const MixedPrecision precision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  const auto alone = train_alone(2, {});
  const auto reference = train_sharded(2, {}, mixed(GatherForm::kCopy, precision));
  for (std::size_t i = 0; i < alone.losses.size(); ++i) {
    const auto mean = (reference[0].losses[i] + reference[1].losses[i]) / 2;
    EXPECT_NEAR(mean, alone.losses[i], 0.02 * alone.losses[i]);
    EXPECT_NEAR(reference[0].norms[i], alone.norms[i], 0.05 * alone.norms[i]);
  }
  for (const auto& [name, t] : reference[0].weights) EXPECT_EQ(t.scalar_type(), at::kFloat) << name;
  EXPECT_GT(worst_difference(reference[0], alone), 0.0);
  for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    const auto shared = train_sharded(2, {}, mixed(GatherForm::kShared, precision, strategy));
    if (strategy != ShardingStrategy::kNoShard) {
      EXPECT_EQ(worst_difference(shared[0], reference[0]), 0.0);
    }
    EXPECT_EQ(worst_difference(shared[0], shared[1]), 0.0);
    EXPECT_LE(worst_difference(shared[0], reference[0]), 1e-6);
  }
}

TEST(Precision, ReduceDtypeAloneRoundsTheGradients) {
  const MixedPrecision precision{.reduce_dtype = at::kBFloat16};
  const auto fp32 = train_sharded(2, {}, mixed(GatherForm::kShared, {}));
  const auto shared = train_sharded(2, {}, mixed(GatherForm::kShared, precision));
  const auto copy = train_sharded(2, {}, mixed(GatherForm::kCopy, precision));
  EXPECT_EQ(fp32[0].losses[0], shared[0].losses[0]);
  EXPECT_NE(fp32[0].norms[0], shared[0].norms[0]);
  EXPECT_NEAR(fp32[0].norms[0], shared[0].norms[0], 0.01 * fp32[0].norms[0]);
  EXPECT_EQ(worst_difference(shared[0], copy[0]), 0.0);
}

TEST(Precision, DtypesInsideAndOutside) {
  comm::run_threads(2, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    net.stem->weight.set_requires_grad(false);
    const MixedPrecision precision{.param_dtype = at::kBFloat16, .output_dtype = at::kFloat};
    auto sharded = fully_shard(net, group, mixed(GatherForm::kShared, precision));
    EXPECT_EQ(net.blocks[0]->up->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net(batch(0, 0)).scalar_type(), at::kFloat);
    for (const auto& s : sharded->shards())
      EXPECT_EQ(s.local.scalar_type(), s.trainable ? at::kFloat : at::kBFloat16) << s.name;
    for (const auto& p : sharded->parameters()) EXPECT_EQ(p.scalar_type(), at::kFloat);
  });
}

TEST(Precision, InputsAreCastOnlyWhenAsked) {
  comm::run_threads(1, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(
        net, group, mixed(GatherForm::kShared, {.param_dtype = at::kBFloat16, .cast_forward_inputs = false}));
    EXPECT_THROW(net(batch(0, 0)), c10::Error);
    EXPECT_EQ(net(batch(0, 0).to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  });
}

TEST(Precision, Bf16ModelsTrainInBf16) {
  const TrainOptions how{
      .prepare = [](SmallNet& net) { net.to(at::kBFloat16); },
  };
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    how.prepare(net);
    auto sharded = fully_shard(net, group, mixed(GatherForm::kShared, {}));
    loss_of(net(batch(group->rank(), 0).to(at::kBFloat16)), group->rank(), 0).backward();
    for (const auto& p : sharded->parameters()) {
      EXPECT_EQ(p.scalar_type(), at::kBFloat16);
      EXPECT_EQ(p.grad().scalar_type(), at::kBFloat16);
    }
  });
}

}  // namespace
}  // namespace tessera::fsdp
