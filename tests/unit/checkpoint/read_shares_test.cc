// Ranks share the reading of a checkpoint: every byte is summed once, and read by those that need it.
#include "checkpoint/read_shares.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tessera::checkpoint {
namespace {

using Needed = std::vector<std::vector<ByteRange>>;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(ReadShares, ARankThatNeedsAFileReadsAllOfItAlone) {
  const Needed needed = {{{0, 8, 100}}, {{1, 8, 90}}};  // not the headers
  const auto first = share_reading({100, 90}, needed, 0), second = share_reading({100, 90}, needed, 1);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].range, (ByteRange{0, 0, 8}));
  EXPECT_EQ(first[1].range, (ByteRange{0, 8, 100}));
  for (const auto& share : first) EXPECT_TRUE(share.sums && share.alone);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[1].range, (ByteRange{1, 8, 90}));
}

TEST(ReadShares, WhatSeveralNeedOneSums) {
  const Needed needed = {{{0, 0, 60}}, {{0, 40, 100}}};
  const auto first = share_reading({100}, needed, 0), second = share_reading({100}, needed, 1);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_TRUE(first[0].alone);
  EXPECT_EQ(first[1].range, (ByteRange{0, 40, 60}));
  EXPECT_TRUE(first[1].sums && !first[1].alone);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_TRUE(!second[0].sums && !second[0].alone);
  EXPECT_EQ(second[1].range, (ByteRange{0, 60, 100}));
}

TEST(ReadShares, AFileThatNobodyNeedsIsReadByThoseWhoHaveLessToDo) {
  const std::vector<std::uint64_t> sizes = {100 * kMiB, 40 * kMiB, 60 * kMiB};
  const Needed needed = {{{0, 0, 100 * kMiB}}, {{1, 0, 40 * kMiB}}};
  EXPECT_EQ(share_reading(sizes, needed, 0).size(), 1u);
  const auto second = share_reading(sizes, needed, 1);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[1].range, (ByteRange{2, 0, 60 * kMiB}));
}

TEST(ReadShares, SumEveryByteOnceAndReadWhatIsNeeded) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t ranks = 1 + random() % 5, files = 1 + random() % 4;
    std::vector<std::uint64_t> sizes;
    for (std::size_t f = 0; f < files; ++f) sizes.push_back(random() % 3 == 0 ? random() % 7 * kMiB : random() % 300);
    Needed needed(ranks);
    for (auto& ranges : needed)
      for (std::size_t f = 0; f < files; ++f)
        for (std::uint64_t at = random() % 90; at < sizes[f]; at += 1 + random() % (sizes[f] / 2)) {
          const std::uint64_t end = std::min(sizes[f], at + 1 + random() % (sizes[f] / 2));
          if (random() % 2) append_range(ranges, {f, at, end});
          at = end;
        }
    std::map<std::size_t, std::map<std::uint64_t, std::uint64_t>> summed;  // file -> begin -> end
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<ByteRange> read;
      for (const auto& share : share_reading(sizes, needed, static_cast<int>(rank))) {
        append_range(read, share.range);
        if (!share.sums) continue;
        EXPECT_TRUE(summed[share.range.file].emplace(share.range.begin, share.range.end).second);
      }
      for (const auto& want : needed[rank])
        EXPECT_TRUE(std::any_of(
            read.begin(), read.end(),
            [&](const ByteRange& r) { return r.file == want.file && r.begin <= want.begin && want.end <= r.end; }))
            << "trial " << trial;
    }
    for (std::size_t f = 0; f < files; ++f) {
      std::uint64_t end = 0;
      for (const auto& [begin, stop] : summed[f]) {
        EXPECT_EQ(begin, end) << "trial " << trial;
        end = stop;
      }
      EXPECT_EQ(end, sizes[f]) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint
