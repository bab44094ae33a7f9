#include "fsdp/flat_layout.h"

#include <gtest/gtest.h>

namespace tessera::fsdp {
namespace {

ParameterSpec spec(std::string name, std::vector<std::int64_t> shape, bool trainable = true,
                   at::ScalarType stored = at::kFloat, at::ScalarType compute = at::kFloat) {
  return {std::move(name), std::move(shape), stored, compute, trainable, false};
}

TEST(FlatLayout, SlicesAreEqualAndMultiplesOf64Bytes) {
  for (int world : {1, 2, 3, 5, 8}) {
    const auto segments = make_segments({spec("a", {7, 3}), spec("b", {1}), spec("c", {129})}, world);
    ASSERT_EQ(segments.size(), 1u);
    EXPECT_EQ(segments[0].numel, segments[0].slice_numel * world);
    EXPECT_EQ(segments[0].slice_numel * 4 % 64, 0);
    EXPECT_GE(segments[0].numel, 21 + 1 + 129);
    for (const auto& e : segments[0].entries) EXPECT_EQ(e.offset * 4 % 64, 0);
  }
}

TEST(FlatLayout, SeparatesByStoredDtypeAndTrainability) {
  const auto segments = make_segments({spec("a", {4}), spec("b", {4}, false),
                                       spec("c", {4}, true, at::kBFloat16, at::kBFloat16), spec("d", {4}, false)},
                                      2);
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_TRUE(segments[0].trainable);
  EXPECT_EQ(segments[1].entries.size(), 2u);
  EXPECT_EQ(segments[1].entries[1].parameter, 3);
  EXPECT_EQ(segments[2].stored, at::kBFloat16);
}

TEST(FlatLayout, AFrozenSegmentIsKeptInTheComputeDtype) {
  const auto segments = make_segments(
      {spec("a", {4}, false, at::kFloat, at::kBFloat16), spec("b", {4}, true, at::kFloat, at::kBFloat16)}, 2);
  EXPECT_EQ(segments[0].shard_dtype(), at::kBFloat16);
  EXPECT_EQ(segments[1].shard_dtype(), at::kFloat);
}

TEST(FlatLayout, MappedParametersTakeNoSpace) {
  auto mapped = spec("a", {400}, false);
  mapped.mapped = true;
  EXPECT_TRUE(make_segments({mapped}, 2).empty());
}

TEST(FlatLayout, PiecesOfAllRanksCoverEachElementOnce) {
  const std::vector<ParameterSpec> specs = {spec("a", {7, 3}), spec("b", {1}), spec("c", {130}), spec("d", {0}),
                                            spec("e", {33})};
  for (int world : {1, 2, 3, 7}) {
    const auto segment = make_segments(specs, world).front();
    std::vector<std::vector<int>> seen;
    for (const auto& s : specs) seen.emplace_back(static_cast<std::size_t>(s.numel()), 0);
    for (int rank = 0; rank < world; ++rank)
      for (const auto& p : pieces_of_slice(segment, rank)) {
        EXPECT_LE(p.in_slice + p.numel, segment.slice_numel);
        for (std::int64_t i = 0; i < p.numel; ++i)
          ++seen[static_cast<std::size_t>(p.parameter)][static_cast<std::size_t>(p.in_parameter + i)];
      }
    for (const auto& counts : seen)
      for (int c : counts) EXPECT_EQ(c, 1);
  }
}

TEST(FlatLayout, GapsAndEntriesTileTheSegment) {
  const auto segment = make_segments({spec("a", {7, 3}), spec("b", {1}), spec("c", {16})}, 3).front();
  std::int64_t covered = 0;
  for (auto [begin, end] : gaps(segment)) covered += end - begin;
  for (const auto& e : segment.entries) covered += e.numel;
  EXPECT_EQ(covered, segment.numel);
}

}  // namespace
}  // namespace tessera::fsdp
