// Changed tokenizers, saved and opened again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kSavedReferences = std::string(TESSERA_TEST_DATA) + "/tokenizers/reference/";

class SavedFolder : public testing::Test {
 protected:
  SavedFolder() : out_(fs::path(testing::TempDir()) / ("tessera_save_" + std::to_string(::getpid()))) {}
  ~SavedFolder() override { fs::remove_all(out_); }
  fs::path out_;
};

class Save : public SavedFolder, public testing::WithParamInterface<const char*> {};

TEST_P(Save, ANewTokenAndTemplateSurvive) {
  const auto old = open_tokenizer(kSavedReferences + GetParam());
  TokenizerChanges changes;
  changes.special.pad = "<|new_pad|>";
  changes.special.additional = {"<|new_user|>", old->id_to_token(7)};
  changes.chat_template = "{{ messages }}";
  const auto now = old->with(changes);
  EXPECT_EQ(now->vocab_size(), old->vocab_size() + 2);
  EXPECT_EQ(old->token_to_id("<|new_pad|>"), -1);
  now->save(out_.string());
  const auto read = open_tokenizer(out_.string());
  EXPECT_EQ(read->special_tokens(), now->special_tokens());
  EXPECT_EQ(read->chat_template(), "{{ messages }}");
  EXPECT_EQ(read->pad_id(), static_cast<std::int32_t>(old->vocab_size()));
  EXPECT_EQ(read->vocab_size(), now->vocab_size());
  for (const std::string text : {"Hello world<|new_user|> x", "<|new_pad|>caf\xC3\xA9 don't 123", ""}) {
    const auto expected = now->encode(text), got = read->encode(text);
    EXPECT_EQ(got.ids, expected.ids) << text;
    EXPECT_EQ(got.offsets, expected.offsets) << text;
    EXPECT_EQ(read->decode(got.ids, true), now->decode(expected.ids, true)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Save,
                         testing::Values("gpt2", "qwen2", "llama2", "llama2_new", "chatml", "llama3_style", "bert"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(SavedFolder, AddedTokensOfAnotherTokenizerComeBehindItsOwnInTheOrderOfTheirIds) {
  const auto old = open_tokenizer(kSavedReferences + std::string("llama2"));
  TokenizerChanges more, changes;
  more.special.additional = {"<|b|>", "<|a|>"};
  changes.added_tokens_of = open_tokenizer(kSavedReferences + std::string("gpt2"))->with(more);
  const auto now = old->with(changes);
  const auto first = static_cast<std::int32_t>(old->vocab_size());
  EXPECT_EQ(now->vocab_size(), first + 3);
  for (const auto& [token, id] : {std::pair{"<|endoftext|>", first}, {"<|b|>", first + 1}, {"<|a|>", first + 2}}) {
    EXPECT_EQ(now->token_to_id(token), id) << token;
    EXPECT_TRUE(now->is_special(id)) << token;
  }
  EXPECT_EQ(now->special_tokens(), old->special_tokens());
  EXPECT_EQ(now->with(changes)->vocab_size(), now->vocab_size());  // they are there
  now->save(out_.string());
  EXPECT_EQ(open_tokenizer(out_.string())->encode("a<|a|> <|b|>").ids, now->encode("a<|a|> <|b|>").ids);
}

TEST_F(SavedFolder, AFolderWithoutATokenizerNamesEveryFormThatWasLookedFor) {
  fs::create_directories(out_);
  try {
    open_tokenizer(out_.string());
    ADD_FAILURE() << "opened";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("looked for tokenizer.json, spiece.model, tokenizer.model, "
                                         "sentencepiece.bpe.model, spm.model, vocab.json with merges.txt, vocab.txt, "
                                         "a .gguf file"),
              std::string::npos)
        << e.what();
  }
}

TEST_F(SavedFolder, AllOtherBytesOfTheFileStay) {
  open_tokenizer(kSavedReferences + "chatml")->save(out_.string());
  auto before = Json::parse(std::ifstream(kSavedReferences + "chatml/tokenizer.json"));
  auto after = Json::parse(std::ifstream(out_ / "tokenizer.json"));
  EXPECT_EQ(after, before);
  const auto old = read_file(kSavedReferences + "chatml/tokenizer.json"),
             now = read_file((out_ / "tokenizer.json").string());
  const auto tail = old.substr(old.find("\"normalizer\""));
  EXPECT_TRUE(now.ends_with(tail));
}

TEST(TokenizerFolder, TemplatesComeFromTheFilesOfTheFolder) {
  const auto folder = fs::path(testing::TempDir()) / ("tessera_templates_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  fs::copy(kSavedReferences + "chatml/tokenizer.json", folder / "tokenizer.json");
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}],)"
      << R"("eos_token": {"content": "<|im_end|>", "special": true}, "model_max_length": 1000000000000000019884624838656})";
  const auto named = open_tokenizer(folder.string());
  EXPECT_EQ(named->chat_template(), "A");
  EXPECT_EQ(named->chat_templates().at("tool_use"), "B");
  EXPECT_EQ(named->eos_id(), named->token_to_id("<|im_end|>"));
  named->save((folder / "saved").string());
  EXPECT_NE(read_file((folder / "saved/tokenizer_config.json").string())
                .find("\"model_max_length\": 1000000000000000019884624838656"),
            std::string::npos);
  std::ofstream(folder / "chat_template.jinja") << "C";
  EXPECT_EQ(open_tokenizer(folder.string())->chat_template(), "C");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tessera::text
