#include "fsdp/grads/slot_ring.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

TEST(SlotRing, BuffersOfOneSizeTakeTurns) {
  const auto slots = place_in_ring({4, 4, 4, 4, 4}, 12);
  EXPECT_EQ(slots[2].offset, 8);
  EXPECT_EQ(slots[2].previous_user, -1);
  EXPECT_EQ(slots[3].offset, 0);
  EXPECT_EQ(slots[3].previous_user, 0);
  EXPECT_EQ(slots[4].previous_user, 1);
}

TEST(SlotRing, TheLastOfSeveralPreviousUsersCounts) {
  const auto slots = place_in_ring({10, 4, 4, 4, 10}, 12);
  EXPECT_EQ(slots[1].offset, 0);  // 10 + 4 does not fit
  EXPECT_EQ(slots[1].previous_user, 0);
  EXPECT_EQ(slots[3].offset, 8);
  EXPECT_EQ(slots[3].previous_user, 0);
  EXPECT_EQ(slots[4].offset, 0);
  EXPECT_EQ(slots[4].previous_user, 3);
}

TEST(SlotRing, RefusesWhatIsLargerThanItself) {
  EXPECT_THROW(place_in_ring({13}, 12), Error);
}

}  // namespace
}  // namespace tessera::fsdp
