// What single keys of tokenizer.json do, as the reference (tokenizers 0.22.2) has it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& json) {
  const auto file = std::filesystem::temp_directory_path() / ("tessera_json_" + std::to_string(::getpid()) + ".json");
  write_file_atomically(file.string(), json);
  const auto out = open_tokenizer(file.string());
  std::filesystem::remove(file);
  return out;
}

TEST(TokenizerJson, HolesInTheVocabularyDecodeToNothing) {
  const auto t = tokenizer_of(R"({"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 1, "a": 3}}})");
  EXPECT_EQ(t->decode({0, 3, 2, 1, 0}, false), "a u");
}

TEST(TokenizerJson, OfTokensThatTheNormalizerMakesAlikeTheSpecialOneIsFound) {
  const auto t = tokenizer_of(R"({"normalizer": {"type": "Lowercase"}, "added_tokens": [
      {"id": 1, "content": "<S>", "normalized": true}, {"id": 2, "content": "<s>", "normalized": true, "special": true}],
      "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0}}})");
  EXPECT_EQ(t->encode("<S>").ids, std::vector<std::int32_t>{2});
}

TEST(TokenizerJson, TextThatTheNormalizerCutInFrontIsNotTheFirst) {
  const auto t = tokenizer_of(R"({"normalizer": {"type": "Strip", "strip_left": true, "strip_right": false},
      "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": false},
      "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "_a": 1, "a": 2}}})");
  EXPECT_EQ(t->encode("a").ids, std::vector<std::int32_t>{1});
  EXPECT_EQ(t->encode(" a").ids, std::vector<std::int32_t>{2});
}

}  // namespace
}  // namespace tessera::text
