// Parity with jinja2 3.1.6 in transformers 4.57's environment (tests/data/chat/SOURCES.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/crc32.h"
#include "base/file.h"
#include "chat/jinja/json.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

const std::string kFolder = std::string(TESSERA_TEST_DATA) + "/chat/";

Value load(const std::string& name) {
  return parse_json(read_file(kFolder + name));
}

Value get(const Value& object, const char* key) {
  return get_item(object, Value(key));
}

// What there is not here, and says so: bytes, complex numbers, and the order of views of dictionaries as sets.
bool is_refused(const std::string& message) {
  return message.find("bytes") != std::string::npos || message == "complex numbers are not supported" ||
         message.find("not supported between instances of 'dict_") != std::string::npos;
}

TEST(Jinja, OneLinersAreThoseOfJinja2) {
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

std::vector<Value> all_points(const Value& runs) {
  std::vector<Value> out;
  for (const auto& run : iterate(runs)) {
    const auto first = std::stoi(to_text(get_item(run, std::int64_t{0})));
    const auto last = std::stoi(to_text(get_item(run, std::int64_t{1})));
    for (auto c = first; c <= last; ++c) out.push_back(Value(to_utf8(std::u32string(1, static_cast<char32_t>(c)))));
  }
  return out;
}

// tests/data/chat/make_code_points.py
TEST(Jinja, EveryCodePointIsWhatPythonTakesItFor) {
  constexpr std::size_t kAtOnce = 4096;
  const Value file = load("code_points.json");
  const auto points = all_points(get(file, "runs"));
  for (const auto& one : iterate(get(file, "cases"))) {
    const auto expression = get(one, "expression").text();
    const Template all("{% for i in x %}{{ " + expression + " }};{% endfor %}");
    std::size_t at = 0;
    for (const auto& expected : iterate(get(one, "crc"))) {
      const auto end = std::min(points.size(), at + kAtOnce);
      const std::vector<Value> some(points.begin() + static_cast<std::ptrdiff_t>(at),
                                    points.begin() + static_cast<std::ptrdiff_t>(end));
      const auto text = all.render({{"x", make_list(some)}}).text;
      EXPECT_EQ(std::to_string(crc32(text.data(), text.size())), to_text(expected))
          << expression << " of the code points from " << to_text(some.front()) << " on";
      at = end;
    }
    EXPECT_EQ(at, points.size());
  }
}

// Each output is jinja2's: an item is asked about when it is reached, or when the body reads what lies ahead.
TEST(Jinja, TheConditionOfALoopSeesWhatItsBodyChanged) {
  const auto changes = [](const std::string& before, const std::string& after = "") {
    return Template("{% set ns = namespace(l='') %}{% for k in ['b', 'b', 'A', 'A', 'b'] if k != ns.l %}" + before +
                    "{% set ns.l = k %}{{ k }}" + after + "{% endfor %}")
        .render({})
        .text;
  };
  EXPECT_EQ(changes(""), "bAb");
  EXPECT_EQ(changes("{{ loop.index }}"), "1b2A3b");
  EXPECT_EQ(changes("", "{{ loop.last }}"), "bFalseAFalsebTrue");
  EXPECT_EQ(changes("", "{{ loop.length }}{{ loop.revindex }}"), "b33A32A31");
  EXPECT_EQ(changes("", "{{ loop.nextitem }}{{ loop.previtem }}"), "bAAbbbA");
  EXPECT_EQ(Template("{% for k, v in [(1, 2), 3] if v %}{{ k }}{% break %}{% endfor %}").render({}).text, "1");
}

}  // namespace
}  // namespace tessera::chat
