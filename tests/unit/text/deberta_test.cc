// Folders of DeBERTa without a tokenizer.json against AutoTokenizer (tests/data/tokenizers/make_deberta.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/temp_folder.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

TEST(DebertaTokenizer, IsMadeFromItsFilesAsUpstream) {
  const auto files = fs::path(TESSERA_TEST_DATA) / "tokenizers" / "deberta";
  const auto cases = Json::parse(std::ifstream(files / "cases.json"));
  ASSERT_FALSE(cases.empty());
  for (const auto& test : cases) {
    SCOPED_TRACE(test["config"].dump());
    const test::TempFolder folder("deberta_tokenizer");
    const fs::path path(folder.path());
    for (const std::string file : test["files"]) fs::copy_file(files / file, path / file);
    std::ofstream(path / "tokenizer_config.json") << test["config"];
    if (!test["model_type"].is_null()) std::ofstream(path / "config.json") << Json{{"model_type", test["model_type"]}};
    const auto tokenizer = open_tokenizer(folder.path());
    EXPECT_EQ(tokenizer->token_to_id("[MASK]"), test["mask"]);
    for (const auto& row : test["rows"]) {
      SCOPED_TRACE(row.dump());
      const std::string text = row["text"];
      const auto found = row.contains("pair") ? tokenizer->encode_pair(text, row["pair"].get<std::string>(), {})
                                              : tokenizer->encode(text);
      EXPECT_EQ(found.ids, row["ids"].get<Ids>());
    }
  }
}

TEST(DebertaTokenizer, EveryPieceOfATextBeginsWithASpaceWhateverIsConfigured) {
  const auto model = fs::path(TESSERA_TEST_DATA) / "tokenizers" / "deberta" / "spm.model";
  for (const char* key : {"legacy", "add_prefix_space"}) {
    SCOPED_TRACE(key);
    const test::TempFolder folder("deberta_tokenizer");
    fs::copy_file(model, fs::path(folder.path()) / "spm.model");
    std::ofstream(fs::path(folder.path()) / "tokenizer_config.json")
        << Json{{"tokenizer_class", "DebertaV2Tokenizer"}, {key, false}};
    const auto tokenizer = open_tokenizer(folder.path());
    EXPECT_EQ(tokenizer->encode("a [SEP]the a").ids, (Ids{1, 27, 2, 13, 27, 2}));
    EXPECT_EQ(tokenizer->encode("a [UNK]the").ids,
              (Ids{1, 27, 4, 3, 13, 2}));  // it is looked for in the normalized text
  }
}

}  // namespace
}  // namespace tessera::text
