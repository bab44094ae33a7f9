// T5's tokenizer against files that the reference implementation wrote (tests/data/tokenizers/SOURCES.md).
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/tokenizer_reference.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kData = std::string(TESSERA_TEST_DATA) + "/tokenizers/";

std::string base64(const std::string& bytes) {
  const char* kSigns = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = (bits << 8) | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (std::size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kSigns[(bits >> (18 - 6 * k)) & 63] : '=';
  }
  return out;
}

// The published tokenizer.json of T5, rebuilt from spiece.model.
Json tokenizer_json() {
  const auto model = parse_sentencepiece(read_file(kData + "t5_spiece.model"), "spiece.model");
  Json vocab = Json::array(), added = Json::array();
  const auto add = [&](const std::string& content, std::size_t id) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  };
  for (const auto& p : model.pieces) vocab.push_back({p.text, p.score});
  for (std::size_t i = 0; i < 3; ++i) add(model.pieces[i].text, i);
  for (int n = 99; n >= 0; --n) {
    add("<extra_id_" + std::to_string(n) + ">", vocab.size());
    vocab.push_back({"<extra_id_" + std::to_string(n) + ">", 0.0});
  }
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}, {"split", true}};
  const Json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, b = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}},
             eos = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", base64(model.precompiled_charsmap)}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace}}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {a, eos}},
            {"pair", {a, eos, b, eos}},
            {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {1}}, {"tokens", {"</s>"}}}}}}}},
          {"decoder", metaspace},
          {"model", {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", vocab}, {"byte_fallback", false}}}};
}

std::shared_ptr<const Tokenizer> open_json(const Json& json) {
  const auto file =
      std::filesystem::temp_directory_path() / ("tessera_tokenizer_" + std::to_string(::getpid()) + ".json");
  std::ofstream(file) << json;
  auto out = open_tokenizer(file.string());
  std::filesystem::remove(file);
  return out;
}

struct Form {
  const char* name;
  bool json;
};

class T5Golden : public testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    static const auto model = open_tokenizer(kData + "t5_spiece.model");
    static const auto json = open_json(tokenizer_json());
    tokenizer_ = GetParam().json ? json : model;
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(T5Golden, IdsOffsetsAndTextEqualTheReference) {
  std::ifstream in(kData + "t5.jsonl");
  int encoded = 0, decoded = 0;
  for (std::string line; std::getline(in, line);) {
    const auto row = Json::parse(line);
    SCOPED_TRACE(line.substr(0, 300));
    Ids ids;
    if (row.contains("decode_ids")) {
      ids = row["decode_ids"].get<Ids>();
      ++decoded;
    } else {
      const auto text = row.contains("bytes_hex") ? test::from_hex(row["bytes_hex"]) : row["text"].get<std::string>();
      const auto e = tokenizer_->encode(text);
      ids = row["ids_special"].get<Ids>();
      EXPECT_EQ(e.ids, ids);
      EXPECT_EQ(e.offsets, (row["offsets"].get<std::vector<std::pair<std::int32_t, std::int32_t>>>()));
      EXPECT_EQ(tokenizer_->encode(text, false).ids, row["ids"].get<Ids>());
      ++encoded;
    }
    EXPECT_EQ(tokenizer_->decode(ids), row["decode"].get<std::string>());
    const auto skip = tokenizer_->decode(ids, true);
    EXPECT_EQ(skip, row["decode_skip"].get<std::string>());
    if (row.contains("decode_cleanup")) {
      EXPECT_EQ(clean_up_tokenization_spaces(skip), row["decode_cleanup"].get<std::string>());
    }
  }
  EXPECT_GE(encoded, 300);
  EXPECT_EQ(decoded, 80);
}

TEST_P(T5Golden, PaddingAndTruncationEqualTheReference) {
  test::expect_batches(*tokenizer_, Json::parse(std::ifstream(kData + "t5_batch.json")));
}

TEST_P(T5Golden, PairsEqualTheReference) {
  test::expect_pairs(*tokenizer_, Json::parse(std::ifstream(kData + "t5_batch.json"))["pairs"]);
}

TEST_P(T5Golden, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 32100);
  EXPECT_EQ(tokenizer_->pad_id(), 0);
  EXPECT_EQ(tokenizer_->eos_id(), 1);
  EXPECT_EQ(tokenizer_->unk_id(), 2);
  EXPECT_EQ(tokenizer_->bos_id(), -1);
  EXPECT_EQ(tokenizer_->token_to_id("<extra_id_0>"), 32099);
  EXPECT_EQ(tokenizer_->token_to_id("<extra_id_99>"), 32000);
  EXPECT_EQ(tokenizer_->token_to_id("no such token"), -1);
  EXPECT_EQ(tokenizer_->id_to_token(7163), "\u2581neutral");
  EXPECT_EQ(tokenizer_->encode("neutral").ids, (Ids{7163, 1}));
}

INSTANTIATE_TEST_SUITE_P(Forms, T5Golden, testing::Values(Form{"spiece", false}, Form{"json", true}),
                         [](const auto& info) { return info.param.name; });

TEST(AddedTokens, FlagsActAsInTheReference) {
  const auto file = Json::parse(std::ifstream(kData + "t5_added.json"));
  auto json = tokenizer_json();
  for (const auto& token : file["added"]) json["added_tokens"].push_back(token);
  const auto tokenizer = open_json(json);
  for (const auto& row : file["texts"]) {
    const auto e = tokenizer->encode(row["text"].get<std::string>());
    EXPECT_EQ(e.ids, row["ids"].get<Ids>()) << row;
    EXPECT_EQ(e.offsets, (row["offsets"].get<std::vector<std::pair<std::int32_t, std::int32_t>>>())) << row;
    EXPECT_EQ(tokenizer->decode(e.ids), row["decode"].get<std::string>());
  }
}

}  // namespace
}  // namespace tessera::text
