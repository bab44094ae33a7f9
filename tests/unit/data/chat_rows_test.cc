// Messages of rows.
#include <gtest/gtest.h>

#include "base/file.h"
#include "chat/jinja/json.h"
#include "data/chat_renderer.h"
#include "data/chat_rows.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

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
  std::string text(const std::string& row, std::optional<bool> add_generation_prompt = {}) const {
    SourceRow place;
    place.file = &name_;
    const auto object = chat::parse_json(row);
    return ChatRenderer(source_, "", *tokenizer_)
        .render(chat::make_list({}), **object.get<chat::DictPtr>(), place, add_generation_prompt)
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

TEST_F(Renderer, WhatARowGivesTheTemplateCountsBeforeAllElse) {
  const std::string asks = R"({"chat_template_kwargs": {"add_generation_prompt": true}})";
  source_ = "{{ bos_token }}{{ tools }}{{ add_generation_prompt }}";
  EXPECT_EQ(text("{}"), "<s>NoneFalse");
  EXPECT_EQ(text("{}", true), "<s>NoneTrue");
  EXPECT_EQ(text(asks), "<s>NoneTrue");
  EXPECT_EQ(text(R"({"tools": [1], "chat_template_kwargs": {"tools": [2], "bos_token": "b"}})"), "b[2]False");
  EXPECT_EQ(text(R"({"chat_template_kwargs": {"chat_template": "{{ 1 }}{{ chat_template is defined }}"}})"), "1False");
  EXPECT_EQ(text(R"({"chat_template_kwargs": {"chat_template": null}})"), "<s>NoneFalse");
  try {  // TRL has the argument twice
    text(asks, true);
    FAIL() << "a prompt that asks for a generation prompt itself";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("must not have add_generation_prompt"), std::string::npos) << e.what();
  }
}

// Spans that are empty, and tokens that lie before a span's.
TEST(AssistantMask, GoesFromTheFirstTokenOfASpanToItsLast) {
  text::Encoding encoding;
  encoding.ids = {7, 7, 7, 7};
  encoding.offsets = {{0, 2}, {2, 4}, {4, 6}, {6, 8}};
  const std::vector<bool> none(4), middle{false, true, true, false}, ends{false, true, false, true};
  EXPECT_EQ(assistant_mask(encoding, {{3, 5}}), middle);
  EXPECT_EQ(assistant_mask(encoding, {{2, 4}, {6, 7}}), ends);
  EXPECT_EQ(assistant_mask(encoding, {{4, 4}, {4, 4}}), none);
}

}  // namespace
}  // namespace tessera::data
