#include "fsdp/grads/reduction_order.h"

#include <gtest/gtest.h>

namespace tessera::fsdp {
namespace {

TEST(ReductionOrder, StartsAsTheReverseOfRegistrationAndKeepsEqualOnesAsTheyCame) {
  const ReductionOrder order({-1, 4, 9, -1, 7, -1, 4});
  EXPECT_EQ(order.buckets(), (std::vector<int>{2, 4, 1, 6, 0, 3, 5}));
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order.position(order.bucket(i)), i);
}

TEST(ReductionOrder, BecomesWhatRankZeroSawAndThenTheRest) {
  comm::run_threads(3, [](std::shared_ptr<comm::Communicator> world) {
    ReductionOrder order({1, 2, 3, 4});
    const std::vector<std::vector<std::size_t>> seen = {{1, 3}, {0, 1, 2, 3}, {2}};
    for (const auto bucket : seen[static_cast<std::size_t>(world->rank())]) order.observe(bucket);
    EXPECT_FALSE(order.agreed());
    order.agree(*world);
    EXPECT_TRUE(order.agreed());
    EXPECT_EQ(order.buckets(), (std::vector<int>{1, 3, 2, 0}));
    EXPECT_EQ(order.position(3), 1u);
  });
}

TEST(ReductionOrder, ForgetsWhatAFailedBackwardSaw) {
  ReductionOrder order({1, 2, 3});
  order.observe(0);
  order.forget_observed();
  order.observe(1);
  order.agree(*comm::make_solo());
  EXPECT_EQ(order.buckets(), (std::vector<int>{1, 2, 0}));
}

}  // namespace
}  // namespace tessera::fsdp
