// Parity with jinja2 3.1.6 in transformers 4.57's environment (tests/data/chat/SOURCES.md).
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template.h"

namespace tessera::chat {
namespace {

const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/chat/";

Value load(const std::string& name) {
  return parse_json(read_file(kFolder + name));
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

// What there is not here, and says so: bytes, complex numbers, and the order of views of dictionaries as sets.
bool is_refused(const std::string& message) {
  return message.find("bytes") != std::string::npos || message == "complex numbers are not supported" ||
         message.find("not supported between instances of 'dict_") != std::string::npos;
}

TEST(JinjaGolden, OneLinersAreEqual) {
  const Value groups = get(load("one_liners.json"), "groups");
  ASSERT_GT(length(groups), 100);
  for (const auto& group : iterate(groups)) {
    SCOPED_TRACE(get(group, "name").text());
    for (const auto& one : iterate(get(group, "cases"))) {
      const std::string expression = get_item(one, std::int64_t{0}).text();
      const Value expected = get_item(one, std::int64_t{1});
      try {
        const std::string text = Template("{{ " + expression + " }}").render({}).text;
        EXPECT_TRUE(expected.is_text()) << expression << " should fail, and gives: " << text;
        if (expected.is_text()) {
          EXPECT_EQ(text, expected.text()) << expression;
        }
      } catch (const TemplateError& error) {
        EXPECT_TRUE(expected.is_none() || is_refused(error.message))
            << expression << " should give: " << to_text(expected) << "\nand fails: " << error.message;
      }
    }
  }
}

TEST(JinjaGolden, TemplatesAreEqual) {
  const Value cases = get(load("jinja_cases.json"), "cases");
  ASSERT_GT(length(cases), 50);
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

class ChatGolden : public testing::TestWithParam<const char*> {};

TEST_P(ChatGolden, AllConversationsAreEqual) {
  const Value golden = load(std::string(GetParam()) + ".json");
  const Template parsed(get(golden, "template").text());
  for (const auto& one : iterate(get(golden, "cases"))) {
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

INSTANTIATE_TEST_SUITE_P(Templates, ChatGolden,
                         testing::Values("chatml", "deepseekv3", "gemma", "llama2", "llama3", "mistral", "phi3",
                                         "qwen2_5", "qwen2_5_training", "torture1", "zephyr"));

}  // namespace
}  // namespace tessera::chat
