// When gathers start: ahead of forward, ahead of backward, and how many at a time.
#include <gtest/gtest.h>

#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::SmallNet;
using testing::train_alone;
using testing::train_sharded;
using testing::TrainOptions;

FsdpOptions prefetching(GatherForm form, BackwardPrefetch backward, bool forward, int limit = 2) {
  return {.wrap = wrap_classes({"MlpBlock"}),
          .gather = form,
          .backward_prefetch = backward,
          .forward_prefetch = forward,
          .max_gathers_in_flight = limit};
}

TEST(Prefetch, ChangesNeitherBitsNorCounts) {
  const auto reference = train_sharded(2, {}, prefetching(GatherForm::kCopy, BackwardPrefetch::kNone, false));
  for (auto form : kForms)
    for (auto backward : {BackwardPrefetch::kNone, BackwardPrefetch::kPre, BackwardPrefetch::kPost})
      for (bool forward : {false, true})
        for (int limit : {0, 1, 2}) {
          const auto ranks = train_sharded(2, {}, prefetching(form, backward, forward, limit));
          EXPECT_EQ(worst_difference(ranks[0], reference[0]), 0.0);
          EXPECT_EQ(ranks[1].stats.gathers, reference[1].stats.gathers);
          EXPECT_EQ(ranks[1].stats.gathered_numel, reference[1].stats.gathered_numel);
        }
}

TEST(Prefetch, HoldsOneBlockMoreWhereItIsAllowedTo) {
  comm::run_threads(2, [](std::shared_ptr<comm::Communicator> group) {
    const auto gathered = [&](BackwardPrefetch backward, bool forward, int limit) {
      SmallNet net;
      auto sharded = fully_shard(net, group, prefetching(GatherForm::kCopy, backward, forward, limit));
      std::vector<std::int64_t> peaks;
      for (int step = 0; step < 2; ++step) {
        auto y = net(batch(group->rank(), step));
        peaks.push_back(sharded->memory().peak_gathered_bytes);
        loss_of(y, group->rank(), step).backward();
        EXPECT_EQ(sharded->memory().gathered_bytes, 0);
      }
      peaks.push_back(sharded->memory().peak_gathered_bytes);
      return peaks;  // forward 1, forward 2, all
    };
    const auto none = gathered(BackwardPrefetch::kNone, false, 2);
    const auto post = gathered(BackwardPrefetch::kPost, false, 2);
    const auto pre = gathered(BackwardPrefetch::kPre, false, 2);
    const auto forward = gathered(BackwardPrefetch::kNone, true, 2);
    const auto block = pre[2] - none[2];
    EXPECT_GT(block, 0);
    EXPECT_EQ(none[1], none[0]);
    EXPECT_EQ(post[2], none[2]) << "after a unit is done its memory is free for the next";
    EXPECT_EQ(forward[0], none[0]) << "the first forward does not know what comes next";
    EXPECT_EQ(forward[1], none[0] + block);
    EXPECT_EQ(gathered(BackwardPrefetch::kPre, true, 0), none);
  });
}

TEST(Prefetch, StartsNothingWhereGathersMoveNothing) {
  for (const int world : {1, 2})
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      const auto peak = [&](GatherForm form, BackwardPrefetch backward, bool forward) {
        SmallNet net;
        auto sharded = fully_shard(net, group, prefetching(form, backward, forward));
        for (int step = 0; step < 2; ++step) loss_of(net(batch(group->rank(), step)), group->rank(), step).backward();
        return sharded->memory().peak_gathered_bytes;
      };
      EXPECT_EQ(peak(GatherForm::kShared, BackwardPrefetch::kPre, true), 0);
      const auto none = peak(GatherForm::kCopy, BackwardPrefetch::kNone, false);
      const auto ahead = peak(GatherForm::kCopy, BackwardPrefetch::kPre, true);
      EXPECT_EQ(ahead > none, world > 1) << "a rank alone has nobody to wait for";
    });
}

TEST(Prefetch, RecoversWhenAnotherUnitComesNext) {
  const TrainOptions how{.before_step = [](SmallNet& net, int, int step) { net.options.skip = step % 3; }};
  const auto alone = train_alone(2, {}, how);
  for (auto form : kForms)
    for (auto backward : {BackwardPrefetch::kPre, BackwardPrefetch::kPost}) {
      const auto ranks = train_sharded(2, {}, prefetching(form, backward, true), how);
      EXPECT_LE(worst_difference(ranks[0], alone), 1e-6);
      EXPECT_EQ(ranks[0].memory.gathered_bytes, 0);
    }
}

TEST(Prefetch, NestedUnitsAndEvaluationLeaveNothingBehind) {
  for (auto form : kForms) {
    auto options = prefetching(form, BackwardPrefetch::kPre, true);
    options.wrap = wrap_classes({"MlpBlock", "Affine"});
    EXPECT_LE(worst_difference(train_sharded(3, {}, options)[0], train_alone(3, {})), 1e-6);
    comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      auto sharded = fully_shard(net, group, options);
      at::NoGradGuard no_grad;
      net(batch(0, 0));
      net.options.skip = 1;
      net(batch(0, 0));
      EXPECT_EQ(sharded->memory().gathered_bytes, 0);
    });
  }
}

TEST(Prefetch, ANegativeLimitIsAnError) {
  SmallNet net;
  EXPECT_THROW(fully_shard(net, comm::make_solo(), {.max_gathers_in_flight = -1}), ConfigError);
}

}  // namespace
}  // namespace tessera::fsdp
