// Whole tokenizers of every kind against transformers' output (tests/data/tokenizers/make_reference.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kReferences = std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/";

std::vector<std::int32_t> flat(const Encoding& encoding) {
  std::vector<std::int32_t> out;
  for (const auto& [begin, end] : encoding.offsets) out.insert(out.end(), {begin, end});
  return out;
}

class Reference : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = open_tokenizer(kReferences + GetParam());
  Json expected_ = Json::parse(std::ifstream(kReferences + GetParam() + "/expected.json"));
};

TEST_P(Reference, IdsOffsetsAndTextEqual) {
  ASSERT_GE(expected_["rows"].size(), 50u);
  for (const auto& row : expected_["rows"]) {
    SCOPED_TRACE(row["text"].dump(-1, ' ', true));
    const auto text = row["text"].get<std::string>();
    const auto e = tokenizer_->encode(text);
    EXPECT_EQ(e.ids, row["ids"].get<Ids>());
    EXPECT_EQ(flat(e), row["offsets"].get<Ids>());
    EXPECT_EQ(tokenizer_->encode(text, false).ids, row.value("plain", row["ids"].get<Ids>()));
    const auto decoded = row["decode"].get<std::string>();
    EXPECT_EQ(tokenizer_->decode(e.ids), decoded);
    const auto skipped = row.value("decode_skip", decoded);
    EXPECT_EQ(tokenizer_->decode(e.ids, true), skipped);
    const DecodeOptions clean{.skip_special_tokens = true, .clean_up_tokenization_spaces = true};
    EXPECT_EQ(tokenizer_->decode(e.ids, clean), row.value("decode_clean", skipped));
  }
}

TEST_P(Reference, PairsEqual) {
  for (const auto& pair : expected_["pairs"]) {
    SCOPED_TRACE(pair.dump());
    EncodeOptions options;
    options.max_length = pair["max_length"];
    EXPECT_EQ(tokenizer_->encode_pair(pair["a"].get<std::string>(), pair["b"].get<std::string>(), options).ids,
              pair["ids"].get<Ids>());
  }
}

TEST_P(Reference, SpecialTokensEqual) {
  EXPECT_EQ(tokenizer_->vocab_size(), expected_["vocab_size"].get<std::int64_t>());
  if (std::string(GetParam()) == "chatml") return;  // its tokens were named by hand
  const auto& special = tokenizer_->special_tokens();
  const auto& expected = expected_["special"];
  EXPECT_EQ(special.bos, expected.value("bos_token", ""));
  EXPECT_EQ(special.eos, expected.value("eos_token", ""));
  EXPECT_EQ(special.unk, expected.value("unk_token", ""));
  EXPECT_EQ(special.sep, expected.value("sep_token", ""));
  EXPECT_EQ(special.pad, expected.value("pad_token", ""));
  EXPECT_EQ(special.cls, expected.value("cls_token", ""));
  EXPECT_EQ(special.mask, expected.value("mask_token", ""));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Reference,
                         testing::Values("gpt2", "qwen2", "roberta", "llama2", "llama2_new", "chatml", "llama3_style",
                                         "bert"),
                         [](const auto& info) { return std::string(info.param); });

// Models and stages in every combination that published files have.
TEST(Pipelines, EqualTheReference) {
  const auto file = Json::parse(std::ifstream(std::string(TESSERA_TEST_DATA) + "/tokenizers/pipelines.json"));
  const auto path = testing::TempDir() + "tessera_pipeline.json";
  int compared = 0;
  for (const auto& pipeline : file["pipelines"]) {
    std::ofstream(path) << pipeline["tokenizer"];
    const auto tokenizer = open_tokenizer(path);
    for (std::size_t i = 0; i < file["texts"].size(); ++i) {
      SCOPED_TRACE(pipeline["name"].get<std::string>() + " " + file["texts"][i].dump(-1, ' ', true));
      const auto text = file["texts"][i].get<std::string>();
      const auto& result = pipeline["results"][i];
      if (result.is_null()) {
        EXPECT_THROW(tokenizer->encode(text), DataError);
        continue;
      }
      const auto e = tokenizer->encode(text);
      EXPECT_EQ(e.ids, result[0].get<Ids>());
      EXPECT_EQ(flat(e), result[1].get<Ids>());
      EXPECT_EQ(tokenizer->decode(e.ids), result[2].get<std::string>());
      ++compared;
    }
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace tessera::text
