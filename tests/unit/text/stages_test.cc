// Normalizers and pre-tokenizers, one at a time, against the reference implementation's output.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "text/json_parts.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;

class Stages : public testing::Test {
 protected:
  JsonPlace parse(const Json& json) {
    text_ = json.dump();
    return {parser_.parse(text_), "tokenizer.json", "stage"};
  }
  std::string text_;
  simdjson::dom::parser parser_;
};

TEST_F(Stages, NormalizersEqualTheReference) {
  int count = 0;
  for (const auto& c : Json::parse(std::ifstream(std::string(TESSERA_TEST_DATA) + "/tokenizers/stages.json"))) {
    if (!c.contains("normalizer")) continue;
    const auto normalizer = json_normalizer(parse(c["normalizer"]));
    for (const auto& row : c["texts"]) {
      auto text = align(row["text"].get<std::string>());
      normalizer->normalize(text, 0);
      EXPECT_EQ(to_utf8(text.data(), text.data() + text.size()), row["normalized"].get<std::string>())
          << c["normalizer"] << row;
      ++count;
    }
  }
  EXPECT_GT(count, 100);
}

TEST_F(Stages, PreTokenizersEqualTheReference) {
  int count = 0;
  for (const auto& c : Json::parse(std::ifstream(std::string(TESSERA_TEST_DATA) + "/tokenizers/stages.json"))) {
    if (!c.contains("pre_tokenizer")) continue;
    const auto pre_tokenizer = json_pre_tokenizer(parse(c["pre_tokenizer"]));
    for (const auto& row : c["texts"]) {
      Pieces pieces;
      pieces.text = align(row["text"].get<std::string>());
      pieces.list.push_back({0, pieces.text.size(), -1});
      pre_tokenizer->cut(pieces);
      Json got = Json::array();
      for (const auto& p : pieces.list)
        got.push_back({to_utf8(pieces.text.data() + p.begin, pieces.text.data() + p.end),
                       {pieces.text[p.begin].begin, pieces.text[p.end - 1].end}});
      EXPECT_EQ(got, row["pieces"]) << c["pre_tokenizer"] << row["text"];
      ++count;
    }
  }
  EXPECT_GT(count, 150);
}

TEST_F(Stages, UnknownTypesListTheKnownOnes) {
  const auto message = [](auto f) {
    try {
      f();
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message([&] {
              json_normalizer(parse({{"type", "X"}}));
            }).find("tokenizer.json: stage: unknown type \"X\"; known are"),
            std::string::npos);
  EXPECT_NE(message([&] { json_pre_tokenizer(parse({{"type", "X"}})); }).find("Metaspace"), std::string::npos);
  EXPECT_NE(message([&] { json_decoder(parse({{"type", "X"}})); }).find("Metaspace"), std::string::npos);
  EXPECT_NE(message([&] { json_post_processor(parse({{"type", "X"}})); }).find("TemplateProcessing"),
            std::string::npos);
  EXPECT_NE(message([&] { json_model(parse({{"type", "X"}})); }).find("\"X\"; known are BPE"), std::string::npos);
  EXPECT_NE(message([&] {
              json_normalizer(parse({{"type", "Replace"}, {"pattern", {{"Regex", "("}}}, {"content", ""}}));
            }).find("regular expression"),
            std::string::npos);
  EXPECT_NE(message([&] {
              json_model(parse({{"type", "Unigram"}, {"vocab", Json::array({Json::array({"a"})})}}));
            }).find("stage.vocab: entry 0"),
            std::string::npos);
}

TEST_F(Stages, ByteFallbackGoesThereAndBack) {
  Json vocab = Json::array({Json::array({"<unk>", 0.0}), Json::array({"a", -1.0})});
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    vocab.push_back(Json::array({name, -20.0}));
  }
  const auto model = json_model(parse({{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", 0}, {"byte_fallback", true}}));
  std::vector<ModelToken> tokens;
  model->tokenize("a\xc3\xa9", tokens);
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(model->token(tokens[1].id), "<0xC3>");
  EXPECT_EQ(tokens[2].begin, 1u);
  EXPECT_EQ(tokens[2].end, 3u);
  std::vector<std::string> text{"a", "<0xC3>", "<0xA9>", "b", "<0xFF>", "<0x41>"};
  json_decoder(parse({{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}))
      ->decode(text);
  EXPECT_EQ(text, std::vector<std::string>{"a\xc3\xa9"
                                           "b\xef\xbf\xbd\xef\xbf\xbd"});
}

TEST(Unigram, WithoutAnUnknownTokenUncoveredTextIsAnError) {
  const auto model = make_unigram({.pieces = {{"a", -1.0}}}, "m");
  std::vector<ModelToken> tokens;
  EXPECT_THROW(model->tokenize("b", tokens), DataError);
  EXPECT_THROW(make_unigram({}, "m"), DataError);
}

TEST(Unigram, TakesTheMostProbablePath) {
  const auto model = make_unigram(
      {.pieces = {{"a", -3.0}, {"b", -3.0}, {"ab", -7.0}, {"bc", -4.0}, {"c", -2.0}, {std::string(1, '\0'), -1.0}}},
      "m");
  std::vector<ModelToken> tokens;
  model->tokenize(std::string_view("abc\0", 4), tokens);
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0].id, 0);
  EXPECT_EQ(tokens[1].id, 3);
  EXPECT_EQ(tokens[2].id, 5);
}

TEST_F(Stages, BytesAreReadAsRustReadsNumbers) {
  std::vector<std::string> text{"<0x+A>", "<0x-1>", "<0x++>", "<0x4+>"};
  json_decoder(parse({{"type", "ByteFallback"}}))->decode(text);
  EXPECT_EQ(text, (std::vector<std::string>{"\n", "<0x-1>", "<0x++>", "<0x4+>"}));
}

}  // namespace
}  // namespace tessera::text
