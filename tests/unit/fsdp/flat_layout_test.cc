#include "fsdp/plan/flat_layout.h"

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

ParameterSpec packed(std::string name, std::int64_t bytes, std::int64_t block_bytes) {
  auto result = spec(std::move(name), {bytes}, false, at::kByte, at::kByte);
  result.block_bytes = block_bytes;
  return result;
}

TEST(FlatLayout, SlicesOfPackedParametersEndAtTheirBlocks) {
  for (int world : {1, 2, 3, 7})
    for (std::int64_t block : {4, 32, 64, 144, 210, 2048}) {
      const std::vector<ParameterSpec> specs = {packed("a", 37 * block + 3, block), spec("d", {40}, false),
                                                packed("b", 5, block), packed("c", 1000 * block, block)};
      const auto segments = make_segments(specs, world);
      ASSERT_EQ(segments.size(), 2u);
      EXPECT_EQ(segments[0].slice_numel % 64, 0);
      EXPECT_EQ(segments[0].shard_dtype(), at::kByte);
      for (int rank = 0; rank < world; ++rank)
        for (const auto& p : pieces_of_slice(segments[0], rank)) {
          const auto end = p.in_parameter + p.numel;
          EXPECT_EQ(p.in_parameter % block, 0);
          EXPECT_TRUE(end % block == 0 || end == specs[static_cast<std::size_t>(p.parameter)].numel());
        }
    }
}

TEST(FlatLayout, PackedFieldsOfAllDtypesAreBytes) {
  auto absmax = spec("absmax", {10}, false, at::kFloat, at::kFloat);
  absmax.block_bytes = 4;
  const auto segments = make_segments({packed("codes", 640, 64), absmax, spec("bias", {10}, false)}, 2);
  ASSERT_EQ(segments.size(), 2u);  // bytes and floats
  ASSERT_EQ(segments[0].entries.size(), 2u);
  EXPECT_EQ(segments[0].entries[1].offset, 640);
  EXPECT_EQ(segments[0].entries[1].numel, 40);
}

}  // namespace
}  // namespace tessera::fsdp
