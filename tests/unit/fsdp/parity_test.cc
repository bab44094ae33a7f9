// Sharded training takes the same steps as unsharded training on all ranks' data.
#include <gtest/gtest.h>

#include "support/train_small_net.h"

namespace tessera::fsdp {
namespace {

using testing::NetOptions;
using testing::train_alone;
using testing::train_sharded;
using testing::TrainOptions;

struct Case {
  const char* name;
  NetOptions net = {};
};

const std::vector<Case> kNets = {
    {"plain", {}}, {"tied", {.tied = true}}, {"unused", {.unused = true}}, {"twice", {.twice = true}}};

std::vector<std::pair<const char*, WrapPolicy>> policies() {
  return {{"one unit", wrap_none()},
          {"blocks", wrap_classes({"MlpBlock"})},
          {"nested", wrap_classes({"MlpBlock", "Affine"})},
          {"by size", wrap_size(80)}};
}

class Parity : public ::testing::TestWithParam<std::tuple<int, GatherForm, ShardingStrategy>> {};

TEST_P(Parity, TrainsLikeOneProcess) {
  const auto [world, gather, strategy] = GetParam();
  for (const auto& net : kNets) {
    const auto alone = train_alone(world, net.net);
    for (const auto& [policy_name, policy] : policies()) {
      SCOPED_TRACE(std::string(net.name) + ", " + policy_name);
      const auto ranks = train_sharded(world, net.net, {.strategy = strategy, .wrap = policy, .gather = gather});
      EXPECT_LE(worst_difference(ranks[0], alone), 1e-6);
      for (std::size_t i = 0; i < alone.norms.size(); ++i)
        EXPECT_NEAR(ranks[0].norms[i], alone.norms[i], 1e-6 * alone.norms[i]);
      for (const auto& rank : ranks) {
        EXPECT_EQ(worst_difference(rank, ranks[0]), 0.0);
        EXPECT_EQ(rank.norms, ranks[0].norms);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Parity,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(GatherForm::kCopy, GatherForm::kShared),
                                            ::testing::Values(ShardingStrategy::kFullShard,
                                                              ShardingStrategy::kShardGradOp,
                                                              ShardingStrategy::kNoShard)));

TEST(Parity, TwoRunsAndBothFormsGiveTheSameBits) {
  const auto wrap = wrap_classes({"MlpBlock"});
  const auto first = train_sharded(3, {}, {.wrap = wrap, .gather = GatherForm::kShared});
  const auto again = train_sharded(3, {}, {.wrap = wrap, .gather = GatherForm::kShared});
  const auto copy = train_sharded(3, {}, {.wrap = wrap, .gather = GatherForm::kCopy});
  EXPECT_EQ(worst_difference(first[0], again[0]), 0.0);
  EXPECT_EQ(worst_difference(first[0], copy[0]), 0.0);
  EXPECT_EQ(first[0].norms, copy[0].norms);
}

}  // namespace
}  // namespace tessera::fsdp
