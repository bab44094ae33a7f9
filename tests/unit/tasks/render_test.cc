// `tessera render`: over the conversations of the reference (tests/data/chat/SOURCES.md), and rows of training data.
#include "tasks/render.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "support/goldens.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using nlohmann::ordered_json;

const std::string kChat = test::kTestData + "/chat/";

struct Said {
  std::string out, error;  // error: of the command, not of a row
};

class Render : public testing::Test {
 protected:
  Said render(const std::string& rows, const std::vector<std::string>& flags) {
    std::ofstream(in("rows.jsonl")) << rows;
    std::vector<std::string> args = {"--input", in("rows.jsonl")};
    args.insert(args.end(), flags.begin(), flags.end());
    std::ostringstream out, err;
    try {
      EXPECT_EQ(tasks::render(args, out, err), 0);
    } catch (const Error& e) {
      return {out.str(), e.what()};
    }
    return {out.str(), ""};
  }
  Said with_template(const std::string& source, const std::string& rows) {
    std::ofstream(in("own.jinja")) << source;
    return render(rows, {"--template", in("own.jinja")});
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  const test::TempFolder folder_{"render"};
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
    ASSERT_EQ(done.error, "") << name;
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
  const auto own = answers_of(render(row, {"--tokenizer", folder}).out);
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
      {"--template", "chatml"});
  EXPECT_EQ(done.error, "");
  const auto answers = answers_of(done.out);
  ASSERT_EQ(answers.size(), 6u);
  const std::vector<std::string> says = {".jsonl:1: key \"messages\" must be a list",
                                         ".jsonl:2: expected a JSON object", ".jsonl:3",
                                         ".jsonl:4: key \"messages[0]\"", ".jsonl:5: key \"messages\" is missing"};
  for (std::size_t i = 0; i < says.size(); ++i) {
    EXPECT_NE(answers[i].value("error", "").find(says[i]), std::string::npos) << answers[i];
  }
  EXPECT_EQ(answers[5]["text"], "<|im_start|>user\nx<|im_end|>\n");
}

TEST_F(Render, LineSeparatorsInTextBreakNoLine) {
  const auto done =
      render("{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u2028b\\u0085c\"}]}\n", {"--template", "chatml"});
  ASSERT_EQ(answers_of(done.out).size(), 1u);
  EXPECT_EQ(done.out.find("\xE2\x80\xA8"), std::string::npos);
}

TEST_F(Render, ATemplateThatCannotBeParsedIsNamedWithItsLine) {
  const auto done = with_template("a\n{% if %}", "");
  EXPECT_NE(done.error.find("own.jinja"), std::string::npos) << done.error;
  EXPECT_NE(done.error.find("line 2"), std::string::npos) << done.error;
  EXPECT_NE(render("", {}).error.find("--tokenizer PATH"), std::string::npos);
}

/// The answers to rows with the tokenizer and the template of tests/data/tiny_chat.
class TrainingRows : public Render {
 protected:
  ordered_json answer(const std::string& row, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> all = {"--tokenizer", test::kTestData + "/tiny_chat", "--template", "chatml"};
    all.insert(all.end(), flags.begin(), flags.end());
    const auto done = render(row, all);
    EXPECT_EQ(done.error, "");
    const auto answers = answers_of(done.out);
    return answers.size() == 1 ? answers[0] : ordered_json(answers);
  }
};

const std::string kUser = "<|im_start|>user\n", kAssistant = "<|im_start|>assistant\n", kEnd = "<|im_end|>";
const std::string kQuestion = R"([{"role": "user", "content": "hi"}])",
                  kAnswer = R"([{"role": "assistant", "content": "ho"}])";

TEST_F(TrainingRows, AreShownWithTheBorderBehindWhichTheLossCounts) {
  const ordered_json chat = {{"prompt", kUser + "hi" + kEnd + "\n" + kAssistant}, {"completion", "ho" + kEnd + "\n"}};
  EXPECT_EQ(answer(R"({"prompt": )" + kQuestion + R"(, "completion": )" + kAnswer + "}"), chat);
  EXPECT_EQ(answer(R"({"instruction": "hi", "output": "ho"})"), chat);
  const std::string texts = R"({"prompt": "hi", "completion": " ho"})";
  EXPECT_EQ(answer(texts), ordered_json({{"prompt", "hi"}, {"completion", " ho" + kEnd}}));
  EXPECT_EQ(answer(texts, {"--completion_only_loss", "false"}), ordered_json({{"text", "hi ho" + kEnd}}));
  EXPECT_EQ(answer(R"({"text": "hi"})"), ordered_json({{"text", "hi" + kEnd}}));
  EXPECT_EQ(answer(R"({"body": "hi"})", {"--dataset_text_field", "body"}), ordered_json({{"text", "hi" + kEnd}}));
  EXPECT_EQ(answer(R"({"input_ids": [72, 73, 74, 75], "labels": [-100, 73, -100, 75]})").at("loss").size(), 2u);
}

TEST_F(TrainingRows, OfConversationsAreWhatTheTemplateMakes) {
  const std::string chat = kUser + "hi" + kEnd + "\n";
  EXPECT_EQ(answer(R"({"conversations": [{"from": "user", "value": "hi"}]})").at("text"), chat);
  EXPECT_EQ(answer(R"({"messages": )" + kQuestion + "}", {"--task", "sft"}), ordered_json({{"text", chat}}));
  EXPECT_NE(answer(R"({"messages": )" + kQuestion + "}", {"--task", "sft", "--assistant_only_loss"})
                .value("error", "")
                .find("no token of the assistant"),
            std::string::npos);
}

TEST_F(TrainingRows, OfPreferencesAreShownAsEachCommandReadsThem) {
  const std::string answers = R"("chosen": " yes", "rejected": " no")";
  const ordered_json pair = {{"prompt", "hi"}, {"chosen", " yes" + kEnd}, {"rejected", " no" + kEnd}};
  EXPECT_EQ(answer(R"({"prompt": "hi", )" + answers + "}"), pair);
  EXPECT_EQ(answer(R"({"chosen": "hi yes", "rejected": "hi no"})"), pair) << "the prompt is the common beginning";
  EXPECT_EQ(answer(R"({"prompt": "hi", )" + answers + R"(, "margin": 0.5})", {"--task", "reward"}),
            ordered_json({{"chosen", "hi yes" + kEnd}, {"rejected", "hi no" + kEnd}, {"margin", 0.5}}));
  EXPECT_EQ(answer(R"({"prompt": "hi", "completion": " yes", "label": true})"),
            ordered_json({{"prompt", "hi"}, {"completion", " yes" + kEnd}, {"label", true}}));
  EXPECT_EQ(answer(R"({"prompt": "hi", )" + answers + "}", {"--task", "kto"}),
            ordered_json({{{"prompt", "hi"}, {"completion", " yes" + kEnd}, {"label", true}},
                          {{"prompt", "hi"}, {"completion", " no" + kEnd}, {"label", false}}}));
  EXPECT_EQ(answer(R"({"prompt": "hi", )" + answers + "}", {"--task", "orpo"}).at("prompt"), "<|endoftext|>hi")
      << "with bos, as TRL's trainers of these names do it";
  EXPECT_NE(answer(R"({"prompt": "hi"})", {"--task", "dpo"}).value("error", "").find(":1: key \"chosen\" is missing"),
            std::string::npos);
}

TEST_F(TrainingRows, OfATableAreReadAsTrainingReadsIt) {
  const std::string file = in("rows.csv");
  std::ofstream(file) << "prompt,completion\nhi,\" ho\"\n,\n";
  const auto done = render("", {"--tokenizer", test::kTestData + "/tiny_chat", "--input", file});
  const auto answers = answers_of(done.out);
  ASSERT_EQ(answers.size(), 2u) << done.error;
  EXPECT_EQ(answers[0], ordered_json({{"prompt", "hi"}, {"completion", " ho" + kEnd}}));
  EXPECT_NE(answers[1].value("error", "").find(".csv:3: key \"prompt\""), std::string::npos) << answers[1];
}

TEST_F(TrainingRows, WithOtherColumnsAreAnsweredWithThoseThereAre) {
  const auto said = answer(R"({"question": "hi", "answer": "ho"})").value("error", "");
  EXPECT_NE(said.find("no column to learn from"), std::string::npos) << said;
  EXPECT_NE(said.find("found question, answer"), std::string::npos) << said;
}

TEST_F(TrainingRows, NeedATokenizer) {
  const auto done = render(R"({"prompt": "hi", "completion": " ho"})", {"--template", "chatml"});
  EXPECT_NE(answers_of(done.out).at(0).value("error", "").find("--tokenizer shows rows of other kinds"),
            std::string::npos);
  EXPECT_NE(render("", {"--template", "chatml", "--task", "sft"}).error.find("name it with --tokenizer"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::tasks
