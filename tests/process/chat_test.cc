// tessera chat: its answers are those of tessera generate, over a pipe and on a terminal.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"
#include "support/terminal.h"

namespace tessera {
namespace {

using nlohmann::json;
using test::Finished;
using test::Words;

const std::string kPrompt = "\x1b[J> ", kEdited = "\x1b[?2004l";  // the editor begins, and leaves

class Chat : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::copy(test::kTinyChat, in("config"));
    auto config = json::parse(read_file(in("config/config.json")));
    config["initializer_range"] = 0.5;  // so that what comes depends on what was before
    write_file_atomically(in("config/config.json"), config.dump());
    ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", in("config"), in("model")}).exit_code, 0);
    ::setenv("TERM", "xterm", 1);
    ::setenv("TESSERA_CHAT_HISTORY", in("history").c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TERM");
    ::unsetenv("TESSERA_CHAT_HISTORY");
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  Finished chat(const std::string& input, const std::string& flags = "") const {
    write_file_atomically(in("input"), input);
    return test::run({"/bin/sh", "-c",
                      std::string("exec '") + TESSERA_BINARY + "' chat --model '" + in("model") +
                          "' --max_new_tokens 12 " + flags + " < '" + in("input") + "'"});
  }
  /// What generate answers to a conversation; rows of a file are decoded without streaming.
  std::string generated(const json& messages) const {
    write_file_atomically(in("rows.jsonl"), json{{"messages", messages}}.dump() + "\n");
    const Finished r = test::run({TESSERA_BINARY, "generate", "--model", in("model"), "--input_file", in("rows.jsonl"),
                                  "--max_new_tokens", "12"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return json::parse(r.out)["generated"][0];
  }
  test::TempFolder folder_{"chat"};
};

json said(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

TEST_F(Chat, AnswersWithTheConversationSoFarUntilItIsReset) {
  const std::string first = "What is a pear?", second = "What is a cat?";
  const json begin = {said("system", "Be brief."), said("user", first)};
  const std::string answer = generated(begin);
  json longer = begin;
  longer.push_back(said("assistant", answer));
  longer.push_back(said("user", second));
  const std::string next = generated(longer), anew = generated({said("system", "Be brief."), said("user", second)});
  ASSERT_NE(next, anew) << "the model must tell the conversations apart, or the test shows nothing";
  const Finished r =
      chat(first + "\n\n" + second + "\n/reset\n" + second + "\n/what\n/exit\n" + first + "\n", "--system 'Be brief.'");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, answer + "\n" + next + "\n" + anew + "\n");
  EXPECT_EQ(r.err, "the conversation begins anew\nunknown command '/what'; there are /reset and /exit\n");
}

TEST_F(Chat, TheLastMessageNeedsNoEndOfLine) {
  EXPECT_EQ(chat("What is a cat?").out, generated(json::array({said("user", "What is a cat?")})) + "\n");
}

TEST_F(Chat, CtrlCEndsAnAnswerAndAtThePromptTheChat) {
  test::OnTerminal t({"chat", "--model", in("model"), "--max_new_tokens", "1000000", "--min_new_tokens", "1000000"});
  t.answer(kPrompt, "What is a pear?\n");
  t.wait_for(kEdited);
  ::usleep(300'000);  // the answer is under way: it would take minutes
  t.answer("", "\x03");
  t.answer(kPrompt, "/reset\n");
  t.wait_for("begins anew\r\n");
  t.answer(kPrompt, "\x03");
  const int status = t.wait_status();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 130) << status;
}

TEST_F(Chat, OnATerminalMessagesAreEditedPastedAndRemembered) {
  const auto shown = [&](const std::string& message) {
    std::string text = generated(json::array({said("user", message)}));
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.replace(at, 1, "\r\n");
    return kEdited + text + "\r\n";
  };
  const std::string cat = shown("What is a cat?"), pasted = shown("one\ntwo");
  test::OnTerminal t({"chat", "--model", in("model"), "--max_new_tokens", "12"});
  t.answer(kPrompt,
           "What is a cxt?\x1b[D\x1b[D\x7f"
           "a\r");
  t.wait_for(cat);
  t.answer(kPrompt, "/reset\r");
  t.wait_for("begins anew\r\n");
  t.answer(kPrompt, "\x1b[200~one\rtwo\x1b[201~\r");
  t.wait_for(pasted);
  t.answer(kPrompt, "/reset\r");
  t.wait_for("begins anew\r\n");
  t.answer(kPrompt,
           "\x12"
           "cat\r");
  t.wait_for(cat);
  t.answer(kPrompt, "\x04");
  EXPECT_EQ(t.wait_status(), 0);
  EXPECT_EQ(read_file(in("history")),
            "\"What is a cat?\"\n\"/reset\"\n\"one\\ntwo\"\n\"/reset\"\n\"What is a cat?\"\n");
}

// Linux keeps 4095 bytes of a line that it edits itself.
TEST_F(Chat, ALineThatTheTerminalCutIsNotAnswered) {
  ::setenv("TERM", "dumb", 1);
  test::OnTerminal t({"chat", "--model", in("model"), "--max_new_tokens", "2"});
  t.answer("> ", std::string(5000, 'x') + "\n");
  t.wait_for("the rest of this one is lost");
  t.answer("FILE\r\n> ", "/exit\n");
  EXPECT_EQ(t.wait_status(), 0);
}

TEST_F(Chat, SaysWhatItCannotTalkTo) {
  const Finished ranks = test::run({TESSERA_BINARY, "launch", "--num_processes", "2", "chat", "--model", in("model")});
  EXPECT_EQ(ranks.exit_code, 2);
  EXPECT_SAYS(ranks.err, "'tessera chat' is one process");
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", test::kDemo + "model", in("t5")}).exit_code, 0);
  const Finished t5 = test::run({TESSERA_BINARY, "chat", "--model", in("t5")});
  EXPECT_EQ(t5.exit_code, 2);
  EXPECT_SAYS(t5.err, "is no causal language model");
}

}  // namespace
}  // namespace tessera
