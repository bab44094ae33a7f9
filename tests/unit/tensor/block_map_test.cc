#include "tensor/block_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace tessera::tensor {
namespace {

TEST(BlockMap, GivesTheSmallestFreeBlockThatFits) {
  BlockMap map(1000);
  const auto a = map.take(300), b = map.take(10), c = map.take(100), d = map.take(10);
  EXPECT_EQ((std::vector<std::int64_t>{a, b, c, d}), (std::vector<std::int64_t>{0, 300, 310, 410}));
  map.give_back(a, 300);
  map.give_back(c, 100);
  EXPECT_EQ(map.take(90), c);
  EXPECT_EQ(map.take(110), a);
}

TEST(BlockMap, JoinsNeighboursAndGrowsFromTheLastFreeBlock) {
  BlockMap map(1000);
  map.take(100), map.take(100), map.take(100);
  map.give_back(0, 100);
  map.give_back(200, 100);
  map.give_back(100, 100);
  EXPECT_EQ(map.take(250), 0);
  EXPECT_EQ(map.take(100), 250);  // 50 free ones and 50 new ones
  EXPECT_EQ(map.end(), 350);
  EXPECT_EQ(map.take(651), -1);
}

TEST(BlockMap, WhatOutlivesItsNeighboursDoesNotSplitUpWhatTheyFree) {
  // A backward: activations that were laid down in order leave from the last to the first, each leaves a gradient.
  const auto range_after = [](auto place) {
    BlockMap map(1 << 20);
    std::vector<std::int64_t> activations, gradients;
    for (int layer = 0; layer < 30; ++layer) activations.push_back(map.take(600));
    for (int layer = 0; layer < 30; ++layer) {
      gradients.push_back((map.*place)(700));
      map.give_back(activations.back(), 600);
      activations.pop_back();
    }
    return map.end();
  };
  EXPECT_LE(range_after(&BlockMap::take_high), 30 * 700 + 2 * 700);
  EXPECT_GT(range_after(&BlockMap::take), 30 * 700 + 6 * 700);
}

TEST(BlockMap, TakesTheEndOfTheHighestFreeBlockThatFits) {
  BlockMap map(1000);
  for (int i = 0; i < 10; ++i) map.take(50);
  map.give_back(100, 50);
  map.give_back(150, 50);
  map.give_back(300, 50);
  EXPECT_EQ(map.take_high(60), 140);
  EXPECT_EQ(map.take_high(40), 310);
  EXPECT_EQ(map.take_high(60), 500) << "nothing fits: the range grows";
  EXPECT_EQ(map.end(), 560);
}

TEST(BlockMap, BlocksNeverOverlapAndARepeatedStepStopsGrowing) {
  BlockMap map(1 << 30);
  std::int64_t end_after_two = 0;
  for (int step = 0; step < 5; ++step) {
    std::mt19937 random(7);
    std::map<std::int64_t, std::int64_t> held;
    for (int i = 0; i < 2000; ++i) {
      if (!held.empty() && random() % 2) {
        auto it = std::next(held.begin(), static_cast<long>(random() % held.size()));
        map.give_back(it->first, it->second);
        held.erase(it);
      } else {
        const std::int64_t size = 64 * (1 + static_cast<std::int64_t>(random() % 4000));
        const auto at = random() % 4 ? map.take(size) : map.take_high(size);
        const auto next = held.lower_bound(at);
        ASSERT_TRUE(next == held.end() || at + size <= next->first);
        ASSERT_TRUE(next == held.begin() || std::prev(next)->first + std::prev(next)->second <= at);
        held[at] = size;
      }
    }
    for (auto [at, size] : held) map.give_back(at, size);
    if (step == 1) end_after_two = map.end();
  }
  EXPECT_EQ(map.end(), end_after_two);
}

}  // namespace
}  // namespace tessera::tensor
