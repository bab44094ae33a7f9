// Parity with jinja2 3.1.6 in transformers 4.57's environment (tests/data/chat/SOURCES.md).
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template.h"
#include "data/chat_rows.h"
#include "support/goldens.h"
#include "text/tokenizer.h"

namespace tessera::chat {
namespace {

Value load(const std::string& name) {
  return parse_json(read_file((test::goldens("E_chat") / name).string()));
}

Value get(const Value& object, const char* key) {
  return get_item(object, Value(key));
}

void expect_error(const Value& expected, const TemplateError& error) {
  ASSERT_FALSE(get(expected, "error").is_undefined()) << error.what();
  if (get(expected, "error_type").text() == "TemplateError") {
    EXPECT_EQ(error.what(), get(expected, "error").text());
  }
  if (error.kind == ErrorKind::kUndefined) {
    EXPECT_EQ(error.message, get(expected, "error").text());
  }
}

TEST(JinjaGolden, TemplatesAreEqual) {
  if (!std::filesystem::exists(test::goldens("E_chat") / "jinja_cases.json")) return;
  const Value cases = get(load("jinja_cases.json"), "cases");
  ASSERT_GT(length(cases), 0);
  for (const auto& one : iterate(cases)) {
    const std::string source = get(one, "template").text();
    SCOPED_TRACE(source);
    std::map<std::string, Value> variables;
    const Value context = get(one, "context");
    for (const auto& [key, value] : (*context.get<DictPtr>())->items()) variables[key.text()] = value;
    try {
      const std::string text = Template(source).render(variables).text;
      ASSERT_FALSE(get(one, "expected").is_undefined()) << "expected an error: " << get(one, "error").text();
      EXPECT_EQ(text, get(one, "expected").text());
    } catch (const TemplateError& error) {
      expect_error(one, error);
    }
  }
}

std::map<std::string, Value> row_of(const Value& golden, const Value& one) {
  std::map<std::string, Value> row;
  for (const auto& pair : iterate(View{View::kItems, *get(golden, "special_tokens").get<DictPtr>()}))
    row[get_item(pair, std::int64_t{0}).text()] = get_item(pair, std::int64_t{1});
  for (const auto& pair : iterate(View{View::kItems, *get(one, "kwargs").get<DictPtr>()}))
    row[get_item(pair, std::int64_t{0}).text()] = get_item(pair, std::int64_t{1});
  if (row.contains("tools")) {
    std::vector<Value> tools;
    for (const auto& name : iterate(row["tools"])) tools.push_back(get_item(get(golden, "tools"), name));
    row["tools"] = make_list(tools);
  }
  row["messages"] = get_item(get(golden, "conversations"), get(one, "conversation"));
  return row;
}

/// The files of the family that hold a template and conversations.
std::vector<std::string> templates() {
  std::vector<std::string> names;
  for (const auto& name : test::names_in(test::goldens("E_chat"), ".json"))
    if (!get(load(name + ".json"), "conversations").is_undefined()) names.push_back(name);
  return names;
}

class ChatGolden : public testing::TestWithParam<std::string> {};

TEST_P(ChatGolden, AllConversationsAreEqual) {
  const Value golden = load(GetParam() + ".json");
  const auto cases = iterate(get(golden, "cases"));
  ASSERT_FALSE(cases.empty());
  const Template parsed(get(golden, "template").text());
  for (const auto& one : cases) {
    SCOPED_TRACE(dump_json(get(one, "conversation")) + dump_json(get(one, "kwargs")));
    try {
      const Rendered out = render_chat(parsed, row_of(golden, one));
      ASSERT_FALSE(get(one, "expected").is_undefined()) << "expected an error: " << get(one, "error").text();
      EXPECT_EQ(out.text, get(one, "expected").text());
      if (const Value spans = get(one, "generation_spans"); !spans.is_undefined()) {
        std::vector<Value> found;
        for (const auto& [begin, end] : out.generation_spans) found.push_back(make_list({begin, end}));
        EXPECT_EQ(dump_json(make_list(found)), dump_json(spans));
      }
    } catch (const TemplateError& error) {
      expect_error(one, error);
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChatGolden);
INSTANTIATE_TEST_SUITE_P(Templates, ChatGolden, testing::ValuesIn(templates()),
                         [](const auto& info) { return test::as_test_name(info.param); });

TEST(AssistantMaskGolden, TokensAreThoseOfTheReference) {
  if (!std::filesystem::exists(test::goldens("E_chat") / "assistant_masks.json")) return;
  const Value golden = load("assistant_masks.json");
  const auto tokenizer = text::open_tokenizer(test::goldens_tokenizer(get(golden, "tokenizer").text()));
  std::map<std::string, Value> special;  // apply_chat_template() gives the template those of the tokenizer
  const auto known = test::goldens("D_tokenizers") / (get(golden, "tokenizer").text() + "_expect.json");
  if (std::filesystem::exists(known)) {
    const auto expect = test::read_golden(known);
    for (const auto& [name, token] : expect.at("special_tokens_map").items()) special[name] = token.get<std::string>();
  }
  std::int64_t marked = 0;
  for (const auto& one : iterate(get(golden, "cases"))) {
    const Value file = load(get(one, "template").text() + ".json");
    SCOPED_TRACE(get(one, "template").text() + dump_json(get(one, "conversation")));
    auto row = special;
    row["messages"] = get_item(get(file, "conversations"), get(one, "conversation"));
    try {
      const auto rendered = render_chat(Template(get(file, "template").text()), std::move(row));
      ASSERT_TRUE(get(one, "error").is_undefined()) << get(one, "error").text();
      const auto encoding = tokenizer->encode(rendered.text, false);
      EXPECT_EQ(nlohmann::json(encoding.ids).dump(), nlohmann::json::parse(dump_json(get(one, "input_ids"))).dump());
      const auto mask = data::assistant_mask(encoding, rendered.generation_spans);
      EXPECT_EQ(nlohmann::json(std::vector<int>(mask.begin(), mask.end())).dump(),
                nlohmann::json::parse(dump_json(get(one, "assistant_masks"))).dump());
      marked += std::count(mask.begin(), mask.end(), true);
    } catch (const TemplateError& error) {  // Python's own errors come from before the template there
      EXPECT_FALSE(get(one, "error").is_undefined()) << error.what();
      if (get(one, "error_type").text() == "TemplateError") {
        EXPECT_EQ(error.what(), get(one, "error").text());
      }
    }
  }
  EXPECT_GT(marked, 0);
}

}  // namespace
}  // namespace tessera::chat
