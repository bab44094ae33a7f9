// Messages of rows.
#include <gtest/gtest.h>

#include "chat/jinja/json.h"
#include "data/chat_rows.h"

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

}  // namespace
}  // namespace tessera::data
