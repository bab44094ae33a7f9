#include "chat/tokenizer_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"

namespace tessera::chat {
namespace {

class TokenizerTemplate : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ + "/" + name) << text; }

  std::string folder_ = testing::TempDir() + "tokenizer_template";
};

TEST_F(TokenizerTemplate, ReadsOneTemplateAndSpecialTokens) {
  write("tokenizer_config.json",
        R"({"chat_template": "{{ 1 }}", "eos_token": {"content": "</s>"}, "bos_token": null})");
  write("special_tokens_map.json", R"({"bos_token": "<s>", "additional_special_tokens": ["<a>", {"content": "<b>"}]})");
  const auto out = read_tokenizer_templates(folder_);
  EXPECT_EQ(out.choose("", true), "{{ 1 }}");
  EXPECT_EQ(out.special_tokens.at("eos_token").text(), "</s>");
  EXPECT_EQ(out.special_tokens.at("bos_token").text(), "<s>");
  EXPECT_EQ(length(out.special_tokens.at("additional_special_tokens")), 2);
}

TEST_F(TokenizerTemplate, ChoosesAmongNamedTemplates) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  const auto out = read_tokenizer_templates(folder_);
  EXPECT_EQ(out.choose("", false), "d");
  EXPECT_EQ(out.choose("", true), "t");
  EXPECT_EQ(out.choose("default", true), "d");
  try {
    out.choose("tool_us", false);
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'tool_use'"), std::string::npos) << e.what();
  }
}

TEST_F(TokenizerTemplate, AFileBesideItWins) {
  write("tokenizer_config.json", R"({"chat_template": "old"})");
  write("chat_template.jinja", "new");
  EXPECT_EQ(read_tokenizer_templates(folder_).choose("", false), "new");
  EXPECT_EQ(read_tokenizer_templates(folder_).file_of("", false), folder_ + "/chat_template.jinja");
}

// As AutoTokenizer: files of templates stand in place of all that the configuration has.
TEST_F(TokenizerTemplate, FilesOfTemplatesReplaceTheConfigurations) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "old"}, {"name": "rag", "template": "r"}]})");
  std::filesystem::create_directories(folder_ + "/additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "t");
  EXPECT_EQ(read_tokenizer_templates(folder_).templates, (std::map<std::string, std::string>{{"tool_use", "t"}}));
  write("chat_template.jinja", "new");
  EXPECT_EQ(read_tokenizer_templates(folder_).templates,
            (std::map<std::string, std::string>{{"default", "new"}, {"tool_use", "t"}}));
}

TEST_F(TokenizerTemplate, SpecialTokensAreThoseOfTheTokenizersClassAndOfAllFiles) {
  write("tokenizer_config.json",
        R"({"tokenizer_class": "LlamaTokenizer", "eos_token": "<end>", "pad_token": "<a>",
            "extra_special_tokens": {"image_token": "<image>"}})");
  write("special_tokens_map.json", R"({"pad_token": "<b>"})");
  const auto tokens = read_tokenizer_templates(folder_).special_tokens;
  EXPECT_EQ(tokens.at("bos_token").text(), "<s>");
  EXPECT_EQ(tokens.at("eos_token").text(), "<end>");
  EXPECT_EQ(tokens.at("pad_token").text(), "<b>");
  EXPECT_EQ(tokens.at("image_token").text(), "<image>");
}

TEST_F(TokenizerTemplate, DamagedFilesAreNamed) {
  write("tokenizer_config.json", "{");
  EXPECT_THROW(read_tokenizer_templates(folder_), DataError);
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THROW(read_tokenizer_templates(folder_), DataError);
  write("tokenizer_config.json", "{}");
  EXPECT_THROW(read_tokenizer_templates(folder_).choose("", false), DataError);
}

}  // namespace
}  // namespace tessera::chat
