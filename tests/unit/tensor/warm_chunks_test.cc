#include "tensor/warm_chunks.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tessera::tensor {
namespace {

using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;

Runs cool(WarmChunks& chunks, std::int64_t offset, std::int64_t size, std::int64_t bytes) {
  Runs runs;
  chunks.cool(offset, size, bytes, [&](std::int64_t at, std::int64_t length) { runs.emplace_back(at, length); });
  return runs;
}

TEST(WarmChunks, ABlockWarmsWhatItTouchesOnce) {
  WarmChunks chunks(100);
  EXPECT_EQ(chunks.bytes(), 0);
  chunks.use(150, 51);
  EXPECT_EQ(chunks.bytes(), 200);
  chunks.use(100, 200);
  EXPECT_EQ(chunks.bytes(), 200);
  chunks.use(300, 1);
  EXPECT_EQ(chunks.bytes(), 300);
}

TEST(WarmChunks, OnlyWholeChunksOfAFreeBlockGetColdAndNoMoreThanAskedFor) {
  WarmChunks chunks(100);
  chunks.use(0, 1000);
  EXPECT_EQ(cool(chunks, 50, 200, 1000), (Runs{{100, 100}}));
  EXPECT_EQ(cool(chunks, 0, 600, 250), (Runs{{0, 100}, {200, 200}}));
  EXPECT_EQ(chunks.bytes(), 600);
  EXPECT_EQ(cool(chunks, 0, 400, 1000), Runs{}) << "they are cold";
  EXPECT_EQ(cool(chunks, 900, 5000, 1000), (Runs{{900, 100}})) << "nothing ever lay behind";
  chunks.use(0, 1000);
  EXPECT_EQ(chunks.bytes(), 1000);
}

}  // namespace
}  // namespace tessera::tensor
