// Messages of rows, and which tokens are the assistant's (transformers 4.57, tests/data/chat/SOURCES.md).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "data/chat_rows.h"
#include "text/tokenizer.h"

namespace tessera::data {
namespace {

using Json = nlohmann::json;

const std::string kData = std::string(TESSERA_TEST_DATA) + "/";

TEST(AssistantMask, TokensAreThoseOfTheReference) {
  const auto tokenizer = text::open_tokenizer(kData + "tokenizers/reference/chatml/tokenizer.json");
  const Json golden = Json::parse(read_file(kData + "chat/assistant_masks.json"));
  int marked = 0;
  for (const auto& one : golden["cases"]) {
    const Json file = Json::parse(read_file(kData + "chat/" + one["template"].get<std::string>() + ".json"));
    SCOPED_TRACE(one["conversation"].dump());
    if (one.contains("error")) continue;
    const chat::Template chat_template(file["template"].get<std::string>());
    std::map<std::string, chat::Value> variables;
    for (const auto& [name, token] : file["special_tokens"].items()) variables[name] = token.get<std::string>();
    variables["messages"] = chat::parse_json(file["conversations"][one["conversation"].get<std::string>()].dump());
    const auto rendered = chat::render_chat(chat_template, std::move(variables));
    const auto encoding = tokenizer->encode(rendered.text, false);
    EXPECT_EQ(Json(encoding.ids), one["input_ids"]);
    const auto mask = assistant_mask(encoding, rendered.generation_spans);
    EXPECT_EQ(Json(std::vector<int>(mask.begin(), mask.end())), one["assistant_masks"]);
    marked += static_cast<int>(std::count(mask.begin(), mask.end(), true));
  }
  EXPECT_GT(marked, 20);
}

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

}  // namespace
}  // namespace tessera::data
