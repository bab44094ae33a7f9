// Trainings while threads stand still at random instructions have the bits of those that nothing disturbs.
// TESSERA_TEST_SECONDS=3600 makes a soak of it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "support/random_delays.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"

namespace tessera::fsdp::soak {
namespace {

using testing::SmallNet;

void expect_same(const testing::Training& disturbed, const testing::Training& quiet) {
  EXPECT_EQ(disturbed.losses, quiet.losses);
  EXPECT_EQ(disturbed.norms, quiet.norms);
  EXPECT_EQ(disturbed.weights.size(), quiet.weights.size());
  for (const auto& [name, t] : disturbed.weights) EXPECT_TRUE(at::equal(t, quiet.weights.at(name))) << name;
}

TEST(Soak, TrainingsUnderRandomDelaysHaveTheirBits) {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto delays_before = test::RandomDelays::count();
  std::int64_t trainings = 0;
  const auto end = std::chrono::steady_clock::now() + test::soak_time();
  for (; std::chrono::steady_clock::now() < end && !HasFailure(); ++trainings) {
    constexpr ShardingStrategy kStrategies[] = {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                                ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard};
    const int ranks = 2 + below(3);
    FsdpOptions options{.strategy = kStrategies[below(4)], .wrap = wrap_classes({"MlpBlock"})};
    if (options.strategy == ShardingStrategy::kHybridShard) options.shard_group_size = ranks == 4 ? 2 : 1;
    options.gather = testing::kForms[below(2)];
    options.backward_prefetch = below(2) == 0 ? BackwardPrefetch::kPre : BackwardPrefetch::kPost;
    options.forward_prefetch = below(2) == 0;
    if (below(2) == 0) options.activation_checkpointing = same_as_wrap();
    if (below(3) == 0) options.precision.param_dtype = at::kBFloat16;
    const auto disk = test::TempFolder::on_disk("soak");
    if (below(4) == 0) options.offload_folder = disk.path();
    SCOPED_TRACE(fmt::format("training {}: strategy {}, {} ranks, form {}", trainings,
                             static_cast<int>(options.strategy), ranks, static_cast<int>(options.gather)));
    const auto quiet = train_sharded(ranks, {.blocks = 4}, options);
    const test::RandomDelays delays(random());
    const auto disturbed = train_sharded(ranks, {.blocks = 4}, options);
    for (int r = 0; r < ranks; ++r)
      expect_same(disturbed[static_cast<std::size_t>(r)], quiet[static_cast<std::size_t>(r)]);
  }
  EXPECT_GT(trainings, 0);
  EXPECT_GT(test::RandomDelays::count(), delays_before);
  std::cout << trainings << " trainings, " << test::RandomDelays::count() - delays_before << " delays\n";
}

}  // namespace
}  // namespace tessera::fsdp::soak
