#include "data/cache_key.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "support/temp_folder.h"

namespace tessera::data {
namespace {

TEST(CacheKey, IsAnotherForEveryPropertyOfAnAddedToken) {
  const test::TempFolder folder("cache_key");
  const std::string file = folder.path() + "/tokenizer.json";
  auto root = nlohmann::json::parse(
      read_text_file(std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/chatml/tokenizer.json"));
  const auto key = [&] {
    write_file_atomically(file, root.dump());
    Fingerprint fingerprint;
    add_tokenizer(fingerprint, *text::open_tokenizer(file));
    return fingerprint.hex();
  };
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
