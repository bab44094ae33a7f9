// What inspect says of files.
#include "checkpoint/describe.h"

#include <gtest/gtest.h>

namespace tessera::checkpoint {
namespace {

// Each tensor of the file is named after its type; the sizes are those of the package gguf.
TEST(Describe, AGgufFileByTheTypesAndBytesThatItStores) {
  const auto found = describe(std::string(TESSERA_TEST_DATA) + "/gguf/blocks.gguf", Checksums::kSizesOnly);
  const auto& part = found.at("parts").at(0);
  ASSERT_EQ(part.at("tensors").size(), 13u);
  for (const auto& t : part.at("tensors")) EXPECT_EQ(t.at("name"), "t." + t.at("dtype").get<std::string>());
  EXPECT_EQ(part.at("bytes"), 3692);
  EXPECT_EQ(part.at("dtypes").at("Q4_K"), 512);
  EXPECT_EQ(part.at("elements"), 8 * 192 + 5 * 512);
}

}  // namespace
}  // namespace tessera::checkpoint
