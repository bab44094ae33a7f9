// `tessera render` as people run it, over the conversations of the reference (tests/data/chat/SOURCES.md).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/goldens.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

const std::string kChat = test::kTestData + "/chat/";

class Render : public testing::Test {
 protected:
  void SetUp() override { prefix_ = testing::TempDir() + "render_" + std::to_string(::getpid()); }
  void TearDown() override {
    ::unlink((prefix_ + ".jsonl").c_str());
    ::unlink((prefix_ + ".jinja").c_str());
  }

  test::Finished render(const std::string& rows, const std::string& flags) {
    std::ofstream(prefix_ + ".jsonl") << rows;
    return test::run({"/bin/sh", "-c", std::string(TESSERA_BINARY) + " render " + flags + " < " + prefix_ + ".jsonl"});
  }
  test::Finished with_template(const std::string& source, const std::string& rows) {
    std::ofstream(prefix_ + ".jinja") << source;
    return render(rows, "--template " + prefix_ + ".jinja");
  }

  std::string prefix_;
};

std::vector<ordered_json> answers_of(const std::string& text) {
  std::vector<ordered_json> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(ordered_json::parse(line));
  return out;
}

/// The row that stands for one case of a golden file.
ordered_json row_of(const ordered_json& golden, const ordered_json& one) {
  ordered_json row = golden["special_tokens"];
  row.update(one["kwargs"]);
  if (row.contains("tools")) {
    ordered_json tools = ordered_json::array();
    for (const auto& name : row["tools"]) tools.push_back(golden["tools"][name.get<std::string>()]);
    row["tools"] = tools;
  }
  row["messages"] = golden["conversations"][one["conversation"].get<std::string>()];
  return row;
}

TEST_F(Render, TextsSpansAndErrorsAreThoseOfTheReference) {
  int spans = 0, errors = 0;
  for (const auto& name : test::names_in(kChat, ".json")) {
    const auto golden = ordered_json::parse(read_file(kChat + name + ".json"));
    if (!golden.contains("conversations")) continue;
    std::string rows;
    for (const auto& one : golden["cases"]) rows += row_of(golden, one).dump() + "\n";
    const auto done = with_template(golden["template"], rows);
    ASSERT_EQ(done.exit_code, 0) << name << done.err;
    const auto answers = answers_of(done.out);
    ASSERT_EQ(answers.size(), golden["cases"].size()) << name;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const ordered_json& want = golden["cases"][i];
      SCOPED_TRACE(name + want["conversation"].dump() + want["kwargs"].dump());
      EXPECT_EQ(answers[i].contains("error"), want.contains("error")) << answers[i];
      if (want.contains("error")) {
        ++errors;
        if (want["error_type"] == "TemplateError") {
          EXPECT_EQ(answers[i]["error"], want["error"]);
        }
        continue;
      }
      EXPECT_EQ(answers[i]["text"], want["expected"]);
      if (want.contains("generation_spans")) {
        ++spans;
        EXPECT_EQ(answers[i]["generation_spans"], want["generation_spans"]);
      }
    }
  }
  EXPECT_GT(spans, 5);
  EXPECT_GT(errors, 5);
}

TEST_F(Render, SpansCountCodePoints) {
  const auto done = with_template(
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
      R"({"messages": [{"role": "u", "content": "é😀"}, {"role": "assistant", "content": "日本"}]})");
  const auto answers = answers_of(done.out);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0]["text"], "u:é😀assistant:日本");
  EXPECT_EQ(answers[0]["generation_spans"], ordered_json::parse("[[14, 16]]"));
}

TEST_F(Render, ARowsVariablesAreStrongerThanTheTokenizers) {
  const std::string folder = test::kTestData + "/tiny_chat";
  const std::string row = R"({"messages": [{"role": "user", "content": "x"}]})";
  const auto own = answers_of(render(row, "--tokenizer " + folder).out);
  ASSERT_EQ(own.size(), 1u);
  EXPECT_NE(own[0].value("text", "").find("x"), std::string::npos) << own[0];
  const auto file = with_template("{{ eos_token }}|{{ bos_token is defined }}",
                                  R"({"messages": [{"role": "user", "content": "x"}], "eos_token": "E"})");
  EXPECT_EQ(answers_of(file.out).at(0)["text"], "E|False");
}

TEST_F(Render, RowsThatAreWrongAreAnsweredWithTheirError) {
  const auto done = render(
      "{\"messages\": 1}\n[]\n{\n{\"messages\": [1]}\n{}\n\n{\"messages\": [{\"role\": \"user\", \"content\": "
      "\"x\"}]}\n",
      "--template chatml");
  EXPECT_EQ(done.exit_code, 0);
  const auto answers = answers_of(done.out);
  ASSERT_EQ(answers.size(), 6u);
  const std::vector<std::string> says = {"row 1: key \"messages\" must be a list", "row 2: expected a JSON object",
                                         "row 3", "row 4: key \"messages[0]\"", "row 5: key \"messages\" is missing"};
  for (std::size_t i = 0; i < says.size(); ++i) {
    EXPECT_NE(answers[i].value("error", "").find(says[i]), std::string::npos) << answers[i];
  }
  EXPECT_EQ(answers[5]["text"], "<|im_start|>user\nx<|im_end|>\n");
}

TEST_F(Render, LineSeparatorsInTextBreakNoLine) {
  const auto done =
      render("{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u2028b\\u0085c\"}]}\n", "--template chatml");
  ASSERT_EQ(answers_of(done.out).size(), 1u);
  EXPECT_EQ(done.out.find("\xE2\x80\xA8"), std::string::npos);
}

TEST_F(Render, ATemplateThatCannotBeParsedIsNamedWithItsLine) {
  const auto done = with_template("a\n{% if %}", "");
  EXPECT_EQ(done.exit_code, 3);
  EXPECT_NE(done.err.find(".jinja"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("line 2"), std::string::npos) << done.err;
  EXPECT_EQ(render("", "").exit_code, 2);
}

}  // namespace
}  // namespace tessera
