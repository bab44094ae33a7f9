// Messages of rows.
#include <gtest/gtest.h>

#include "base/file.h"
#include "chat/jinja/json.h"
#include "data/chat_renderer.h"
#include "data/chat_rows.h"
#include "support/temp_folder.h"

namespace tessera::data {
namespace {

chat::Value messages_of(const std::string& json, RoleNames roles) {
  static const std::string name = "rows.jsonl";
  SourceRow row;
  row.file = &name;
  row.number = 1;
  const chat::Value object = chat::parse_json(json);
  return read_messages(**object.get<chat::DictPtr>(), row, roles);
}

constexpr const char* kShareGpt =
    R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
        {"from": "tool", "value": "t", "id": 3}]})";

TEST(ShareGpt, RolesKeepTheirNamesAsInTrl) {
  const auto messages = messages_of(kShareGpt, RoleNames::kAsTheyAre);
  EXPECT_EQ(
      chat::dump_json(messages),
      R"([{"role": "system", "content": "s"}, {"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}, )"
      R"({"id": 3, "role": "tool", "content": "t"}])");
  EXPECT_EQ(unusual_role(messages), "human");
}

TEST(ShareGpt, RolesGetTheirStandardNamesWhenAskedFor) {
  const auto messages = messages_of(kShareGpt, RoleNames::kStandard);
  EXPECT_EQ(
      chat::dump_json(messages),
      R"([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, )"
      R"({"id": 3, "role": "tool", "content": "t"}])");
  EXPECT_EQ(unusual_role(messages), "");
}

TEST(ShareGpt, AToolCallNeedsNoValue) {
  const auto messages = messages_of(R"({"conversations": [{"from": "gpt", "tool_calls": []}]})", RoleNames::kStandard);
  EXPECT_EQ(chat::dump_json(messages), R"([{"tool_calls": [], "role": "assistant"}])");
}

class Renderer : public testing::Test {
 protected:
  Renderer() {
    write_file_atomically(folder_.path() + "/tokenizer.json",
                          R"({"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "<s>": 1}}})");
    write_file_atomically(folder_.path() + "/tokenizer_config.json",
                          R"({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
        "additional_special_tokens": ["<x>"], "extra_special_tokens": {"image_token": "<i>"}, "chat_template": [
        {"name": "default", "template": "{{ bos_token }}{{ additional_special_tokens }}{{ image_token }}"},
        {"name": "tool_use", "template": "tools: {{ tools }}"}]})");
    tokenizer_ = text::open_tokenizer(folder_.path());
  }
  std::string text(const std::string& row) const {
    SourceRow place;
    place.file = &name_;
    const auto object = chat::parse_json(row);
    return ChatRenderer(source_, "", *tokenizer_)
        .render(chat::make_list({}), **object.get<chat::DictPtr>(), place, false)
        .text;
  }

  test::TempFolder folder_{"chat_renderer"};
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::string name_ = "rows.jsonl", source_;
};

TEST_F(Renderer, TemplatesGetAllSpecialTokens) {
  EXPECT_EQ(text("{}"), "<s>['<x>']<i>");
}

TEST_F(Renderer, RowsWithToolsTakeTheTemplateToolUse) {
  EXPECT_EQ(text(R"({"tools": [1]})"), "tools: [1]");
  EXPECT_EQ(text(R"({"tools": "[]"})"), "tools: []");
  EXPECT_EQ(text(R"({"tools": null})"), "<s>['<x>']<i>");
}

TEST_F(Renderer, AChosenTemplateStandsInPlaceOfAll) {
  text::TokenizerChanges changes;
  changes.chat_template = "new";
  tokenizer_ = tokenizer_->with(changes);
  EXPECT_EQ(text(R"({"tools": [1]})"), "new");
  source_ = "own";
  EXPECT_EQ(text(R"({"tools": [1]})"), "own");
}

}  // namespace
}  // namespace tessera::data
