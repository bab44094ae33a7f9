#pragma once
// What the tests that start the program share: where its inputs lie, and what its output is searched for.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::test {

inline const std::string kTestData = TESSERA_TEST_DATA;
inline const std::string kTinyChat = kTestData + "/tiny_chat";  // a Llama's folder with conversations
inline const std::string kDemo = kTestData + "/../../examples/demo/";
constexpr std::int64_t kMiB = 1 << 20;

using Words = std::vector<std::string>;  // of a command line

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tessera::test

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
