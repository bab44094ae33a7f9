#include "fsdp/grads/gradient_slots.h"

#include <gtest/gtest.h>

namespace tessera::fsdp {
namespace {

constexpr std::int64_t kPageBytes = 4096;

/// Sizes in pages.
SlotUser halved(std::int64_t pages, SlotUser user = {}) {
  user.wide_bytes = pages * kPageBytes;
  user.narrow_bytes = user.wide_bytes / 2;
  return user;
}

/// Four units of four pages, the root's rest, a table before the units, a head behind them.
GradientSlots of_a_model(std::int64_t table_pages, std::int64_t head_pages) {
  std::vector<SlotUser> users(4, halved(4));
  users.push_back({.wide_bytes = 10, .narrow_bytes = 5, .takes_turns = false, .keeps_sum = true});
  users.push_back(halved(table_pages, {.opens_early = true}));
  users.push_back(halved(head_pages));
  GradientSlots slots(users);
  slots.set_order({6, 3, 2, 1, 0, 5, 4});
  return slots;
}

TEST(GradientSlots, NarrowOnesTakeHalfTheRoom) {
  const auto slots = of_a_model(20, 20);
  EXPECT_EQ(slots.bytes(SlotWidth::kWide), (20 + 1) * kPageBytes);
  EXPECT_EQ(slots.bytes(SlotWidth::kNarrow), (10 + 1) * kPageBytes);
  EXPECT_EQ(slots.bytes(), slots.bytes(SlotWidth::kWide));
  for (std::size_t user : {0, 1, 2, 3, 5, 6}) {
    EXPECT_TRUE(slots.in_ring(user));
    EXPECT_TRUE(slots.narrow(user, SlotWidth::kNarrow));
    EXPECT_FALSE(slots.narrow(user, SlotWidth::kWide));
  }
}

TEST(GradientSlots, NobodyIsOverwrittenBeforeItsTurnInEitherWidth) {
  for (const auto width : {SlotWidth::kWide, SlotWidth::kNarrow}) {
    const auto slots = of_a_model(20, 20);
    EXPECT_EQ(slots.at(6, width).previous_user, -1);
    for (std::size_t user : {0, 1, 2, 3}) EXPECT_GE(slots.at(user, width).previous_user, 0) << "after the head";
    EXPECT_EQ(slots.at(5, width).previous_user, 4) << "the table comes last and covers all";
  }
}

TEST(GradientSlots, ATableThatMayBeTiedLiesApartInBothWidths) {
  const auto slots = of_a_model(40, 4);
  EXPECT_FALSE(slots.in_ring(5));
  EXPECT_FALSE(slots.keeps_sum(5));
  EXPECT_TRUE(slots.narrow(5, SlotWidth::kNarrow));
  EXPECT_EQ(slots.at(5, SlotWidth::kNarrow).previous_user, -1);
  EXPECT_EQ(slots.bytes(SlotWidth::kWide), (1 + 40 + 3 * 4) * kPageBytes);
  EXPECT_EQ(slots.bytes(SlotWidth::kNarrow), (1 + 20 + 3 * 2) * kPageBytes);
}

// A sum that stays from one backward to the next must not lie where a backward of the other width puts something else.
TEST(GradientSlots, WhatKeepsSumsNeverMoves) {
  std::vector<SlotUser> users(3, halved(4));
  users.push_back(halved(30, {.opens_early = true, .keeps_sum = true}));
  users.push_back({.wide_bytes = 10, .narrow_bytes = 5, .takes_turns = false, .keeps_sum = true});
  users.push_back(halved(40, {.opens_early = true}));
  GradientSlots slots(users);
  slots.set_order({2, 1, 0, 3, 4, 5});
  for (std::size_t user : {3, 4}) {
    EXPECT_TRUE(slots.keeps_sum(user));
    EXPECT_FALSE(slots.narrow(user, SlotWidth::kNarrow));
    EXPECT_EQ(slots.at(user, SlotWidth::kWide).offset, slots.at(user, SlotWidth::kNarrow).offset);
  }
  for (std::size_t user : {0, 1, 2, 5})
    for (const auto width : {SlotWidth::kWide, SlotWidth::kNarrow})
      EXPECT_GE(slots.at(user, width).offset, 31 * kPageBytes) << user;
}

TEST(GradientSlots, TheRingHoldsWhatStaysWideAmongNarrowOnes) {
  std::vector<SlotUser> users(3, halved(4));
  users.push_back({.wide_bytes = 10 * kPageBytes, .narrow_bytes = 10 * kPageBytes, .opens_early = true});
  GradientSlots slots(users);
  EXPECT_TRUE(slots.in_ring(3));
  slots.set_order({2, 1, 0, 3});
  EXPECT_EQ(slots.bytes(SlotWidth::kNarrow), 10 * kPageBytes);
}

}  // namespace
}  // namespace tessera::fsdp
