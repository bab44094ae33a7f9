// Tokenizers against what transformers' made of the same strings: ids, offsets, decoding, padding, truncation, pairs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/goldens.h"
#include "support/subprocess.h"
#include "support/tokenizer_reference.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Offsets = std::vector<std::pair<std::int32_t, std::int32_t>>;

const std::filesystem::path kStrings = test::goldens("D_tokenizers");

/// A tokenizer by its name in the set, from its own files or from the tokenizer.json of the set.
struct Form {
  std::string name;
  bool packed_json = false;
};

void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name << (form.packed_json ? " (tokenizer.json)" : "");
}

std::vector<Form> forms() {
  std::vector<Form> out;
  for (const auto& name : test::names_in(kStrings, "_batch.json")) out.push_back({name});
  for (const auto& name : test::names_in(kStrings, "_tokenizer.json.gz")) out.push_back({name, true});
  return out;
}

std::shared_ptr<const Tokenizer> open(const Form& form) {
  if (!form.packed_json) return open_tokenizer(test::goldens_tokenizer(form.name));
  const auto file = testing::TempDir() + "tessera_" + std::to_string(::getpid()) + "_tokenizer.json";
  const auto unpacked = test::run(
      {"/bin/sh", "-c", "gzip -dc '" + (kStrings / (form.name + "_tokenizer.json.gz")).string() + "' > " + file});
  EXPECT_EQ(unpacked.exit_code, 0) << unpacked.err;
  auto tokenizer = open_tokenizer(file);
  std::filesystem::remove(file);
  return tokenizer;
}

/// With the padding token that the reference was given, where the tokenizer has none.
std::shared_ptr<const Tokenizer> with_padding(std::shared_ptr<const Tokenizer> tokenizer, const std::string& token) {
  TokenizerChanges changes;
  changes.special.pad = token;
  return tokenizer->with(changes);
}

class TokenizerGolden : public testing::TestWithParam<Form> {
 protected:
  void SetUp() override { tokenizer_ = open(GetParam()); }
  Json batches() const { return test::read_golden(kStrings / (GetParam().name + "_batch.json")); }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(TokenizerGolden, IdsOffsetsAndTextEqualTheReference) {
  std::ifstream in(kStrings / (GetParam().name + ".jsonl"));
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    const auto row = Json::parse(line);
    if (row.contains("utf16")) continue;  // lone surrogates, which no UTF-8 text holds
    SCOPED_TRACE(line.substr(0, 300));
    Ids ids;
    if (row.contains("decode_ids")) {
      ids = row["decode_ids"].get<Ids>();
    } else {
      const auto text = row.contains("bytes_hex") ? test::from_hex(row["bytes_hex"]) : row["text"].get<std::string>();
      const auto e = tokenizer_->encode(text);
      ids = row["ids_special"].get<Ids>();
      EXPECT_EQ(e.ids, ids);
      EXPECT_EQ(e.offsets, row["offsets"].get<Offsets>());
      EXPECT_EQ(tokenizer_->encode(text, false).ids, row["ids"].get<Ids>());
    }
    EXPECT_EQ(tokenizer_->decode(ids), row["decode"].get<std::string>());
    const auto skipped = row["decode_skip"].get<std::string>();
    EXPECT_EQ(tokenizer_->decode(ids, true), skipped);
    ++compared;
    if (row.contains("decode_ids")) continue;  // the reference's clean-up was not written down for these
    const DecodeOptions clean{.skip_special_tokens = true, .clean_up_tokenization_spaces = true};
    EXPECT_EQ(tokenizer_->decode(ids, clean), row.value("decode_cleanup", skipped));
  }
  EXPECT_GT(compared, 0);
}

TEST_P(TokenizerGolden, PaddingAndTruncationEqualTheReference) {
  const auto file = batches();
  test::expect_batches(*with_padding(tokenizer_, file["pad_token"]), file);
}

TEST_P(TokenizerGolden, PairsEqualTheReference) {
  test::expect_pairs(*tokenizer_, batches().at("pairs"));
}

TEST_P(TokenizerGolden, TokensAreThoseOfTheReference) {
  const auto file = kStrings / (GetParam().name + "_expect.json");
  if (!std::filesystem::exists(file)) return;
  const auto expect = test::read_golden(file);
  EXPECT_EQ(tokenizer_->vocab_size(), expect["vocab"].get<std::int64_t>());
  for (const auto& [id, token] : expect["added_tokens"].items()) {
    EXPECT_EQ(tokenizer_->token_to_id(token["content"].get<std::string>()), std::stoi(id)) << token;
    EXPECT_EQ(tokenizer_->id_to_token(std::stoi(id)), token["content"].get<std::string>());
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TokenizerGolden);
INSTANTIATE_TEST_SUITE_P(Forms, TokenizerGolden, testing::ValuesIn(forms()), [](const auto& info) {
  return test::as_test_name(info.param.name + (info.param.packed_json ? "_json" : ""));
});

TEST(SentencePieceGolden, RawPiecesAreNoPartOfThisProgram) {
  for (const auto& name : test::names_in(kStrings, "_sentencepiece.jsonl"))
    test::NotSupported::add("D_tokenizers/" + name + "_sentencepiece.jsonl",
                            "SentencePiece without the added tokens has no interface here");
}

}  // namespace
}  // namespace tessera::text
