#include "data/cache_key.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "support/temp_folder.h"

namespace tessera::data {
namespace {

std::string key_of(const nlohmann::json& root, const std::string& file) {
  write_file_atomically(file, root.dump());
  Fingerprint fingerprint;
  add_tokenizer(fingerprint, *text::open_tokenizer(file));
  return fingerprint.hex();
}

// Two merges that no probe meets change places.
TEST(CacheKey, IsAnotherForOtherMergesOfTheSameVocabulary) {
  const test::TempFolder folder("cache_key_merges");
  const std::string file = folder.path() + "/tokenizer.json";
  auto root = nlohmann::json::parse(
      read_text_file(std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/chatml/tokenizer.json"));
  const auto before = key_of(root, file);
  auto& merges = root.at("model").at("merges");
  std::swap(merges.at(merges.size() - 1), merges.at(merges.size() - 2));
  EXPECT_NE(key_of(root, file), before);
}

TEST(CacheKey, IsAnotherForEveryPropertyOfAnAddedToken) {
  const test::TempFolder folder("cache_key");
  const std::string file = folder.path() + "/tokenizer.json";
  auto root = nlohmann::json::parse(
      read_text_file(std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/chatml/tokenizer.json"));
  const auto key = [&] { return key_of(root, file); };
  std::set<std::string> keys = {key()};
  EXPECT_FALSE(keys.insert(key()).second);
  auto& token = root.at("added_tokens").front();
  for (const char* property : {"special", "single_word", "lstrip", "rstrip", "normalized"}) {
    token.at(property) = !token.at(property).get<bool>();
    EXPECT_TRUE(keys.insert(key()).second) << property;
  }
}

}  // namespace
}  // namespace tessera::data
