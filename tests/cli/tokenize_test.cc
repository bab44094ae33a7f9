// `tessera tokenize` as people run it: rows in, rows out.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/program.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

using nlohmann::json;

const std::string kTokenizer = test::kTestData + "/tokenizers/reference/gpt2";

test::Finished tokenize(const std::string& rows, const std::string& flags) {
  const auto file = testing::TempDir() + "tessera_rows_" + std::to_string(::getpid()) + ".jsonl";
  std::ofstream(file) << rows;
  test::Subprocess process({"/bin/sh", "-c", std::string(TESSERA_BINARY) + " tokenize " + flags + " < " + file});
  return process.finish();
}

std::vector<json> lines(const std::string& text) {
  std::vector<json> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
  return out;
}

TEST(Tokenize, EveryRowGivesIdsOffsetsAndText) {
  const auto expected = json::parse(std::ifstream(kTokenizer + "/expected.json"));
  std::string rows;
  for (std::size_t i = 0; i < expected["rows"].size(); ++i) {
    const auto& text = expected["rows"][i]["text"];
    rows += (i % 2 == 0 ? text : json{{"text", text}, {"label", 1}}).dump() + "\n";
  }
  const auto done = tokenize(rows, "--tokenizer " + kTokenizer);
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const auto out = lines(done.out);
  ASSERT_EQ(out.size(), expected["rows"].size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i]["ids"], expected["rows"][i]["ids"]);
    EXPECT_EQ(out[i]["decoded"], expected["rows"][i]["decode"]);
    EXPECT_EQ(out[i]["offsets"].size(), out[i]["ids"].size());
  }
}

TEST(Tokenize, OneTextIsAnsweredAsARowIs) {
  for (const std::string text : {"Hello, world", "none", "-1", ""}) {
    const auto row = tokenize(json(text).dump() + "\n", "--tokenizer " + kTokenizer);
    const auto one = tokenize("", "--tokenizer " + kTokenizer + " --text='" + text + "'");
    EXPECT_EQ(one.exit_code, 0) << one.err;
    EXPECT_EQ(one.out, row.out) << text;
  }
  const auto bad = tokenize("", "--tokenizer " + kTokenizer + " --text \"$(printf 'a\\377')\"");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("--text is not UTF-8 at byte 2"), std::string::npos) << bad.err;
}

TEST(Tokenize, SpecialTokensCanBeLeftOut) {
  const auto llama = test::kTestData + "/tokenizers/reference/llama2/tokenizer.model";
  const auto with = lines(tokenize("\"the\"\n", "--tokenizer " + llama).out);
  const auto without = lines(tokenize("\"the\"\n", "--tokenizer " + llama + " --add_special_tokens false").out);
  EXPECT_EQ(with.at(0)["ids"].size(), without.at(0)["ids"].size() + 1);
}

TEST(Tokenize, ABadRowIsNamedAfterTheRowsBeforeIt) {
  for (const std::string bad : {"{\"txt\": \"a\"}", "{\"text\": 1}", "[1]", "{", "\"\\ud800\"", "\"\xFF\""}) {
    const auto done = tokenize("\"one\"\n\"two\"\n" + bad + "\n\"four\"\n", "--tokenizer " + kTokenizer);
    EXPECT_NE(done.exit_code, 0) << bad;
    EXPECT_NE(done.err.find("line 3"), std::string::npos) << done.err;
    EXPECT_EQ(lines(done.out).size(), 2u) << bad;
  }
}

TEST(Tokenize, LineSeparatorsInTextBreakNoLine) {
  const auto done = tokenize("\"a\\u2028b\\u0085c\\nd\"\n", "--tokenizer " + kTokenizer);
  ASSERT_EQ(lines(done.out).size(), 1u);
  EXPECT_EQ(done.out.find("\xE2\x80\xA8"), std::string::npos);
  EXPECT_EQ(lines(done.out)[0]["decoded"], "a\u2028b\u0085c\nd");
}

TEST(Tokenize, HelpAndMistakesSpeakOfTheFlags) {
  EXPECT_NE(tokenize("", "--help").out.find("--add_special_tokens"), std::string::npos);
  EXPECT_NE(tokenize("", "").err.find("--tokenizer"), std::string::npos);
  EXPECT_NE(tokenize("", "--tokenizer /nowhere").err.find("'/nowhere' is neither a file or folder here"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
