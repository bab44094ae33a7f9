// `tessera generate`: the reference's tokens, the same text from a batch and over two ranks, adapters, chats, streams.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "support/program.h"
#include "support/sft_job.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Finished;
using test::kTinyChat;
using test::operator+;

class Generate : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "generate_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void make_model() {
    ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", kTinyChat, folder_ + "/model"}).exit_code, 0);
  }

  Finished generate(std::vector<std::string> flags, int ranks = 1, const std::string& model = "") {
    std::vector<std::string> command = {TESSERA_BINARY};
    if (ranks > 1) command.insert(command.end(), {"launch", "--cpu", "--num_processes", std::to_string(ranks)});
    command.insert(command.end(), {"generate", "--model", model.empty() ? folder_ + "/model" : model});
    command.insert(command.end(), flags.begin(), flags.end());
    return test::run(command);
  }

  std::string write(const std::string& name, const std::string& text) {
    write_file_atomically(folder_ + "/" + name, text);
    return folder_ + "/" + name;
  }

  std::vector<std::string> answers(const Finished& r) {
    EXPECT_EQ(r.exit_code, 0) << r.err;
    std::vector<std::string> out;
    std::istringstream in(r.out);
    for (std::string line; std::getline(in, line);) out.push_back(json::parse(line)["generated"][0]);
    return out;
  }

  std::string folder_;
};

/// A tokenizer whose token i is the word "w<i>".
json words(int count) {
  json vocab = {{"[UNK]", 0}};
  for (int i = 1; i < count; ++i) vocab["w" + std::to_string(i)] = i;
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocab}}}};
}

TEST_F(Generate, GreedyTokensOfAPaddedBatchAreTheReferences) {
  const std::string golden = std::string(TESSERA_TEST_DATA) + "/goldens/A_models/generate_llama";
  const auto run = json::parse(read_file(golden + "/expect.json"))["runs"][0];
  const std::vector<std::size_t> lengths = {3, 9, 6, 1};  // of the prompts, padded on the left to 9
  write("tokenizer.json", words(61).dump());
  std::string prompts;
  std::vector<std::string> expected;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    std::string prompt, answer;
    const auto ids = run["sequences"][r].get<std::vector<int>>();
    for (std::size_t i = 9 - lengths[r]; i < 9; ++i) prompt += (prompt.empty() ? "w" : " w") + std::to_string(ids[i]);
    for (std::size_t i = 9; i < ids.size(); ++i) {
      answer += (answer.empty() ? "w" : " w") + std::to_string(ids[i]);
      if (ids[i] == 2) break;
    }
    prompts += json(prompt).dump() + "\n";
    expected.push_back(answer);
  }
  const auto file = write("prompts.jsonl", prompts);
  for (const int ranks : {1, 2}) {
    const auto got =
        answers(generate({"--tokenizer", folder_, "--input_file", file, "--max_new_tokens", "18"}, ranks, golden));
    EXPECT_EQ(got, expected) << ranks;
  }
}

TEST_F(Generate, ABatchAndTwoRanksGiveWhatEachPromptGivesAlone) {
  make_model();
  const std::vector<std::string> prompts = {"A pear", "What is a cat? Tell me.", "x"};
  std::string rows;
  for (const auto& prompt : prompts) rows += json{{"prompt", prompt}}.dump() + "\n";
  const auto file = write("prompts.jsonl", rows);
  const auto batch = answers(generate({"--input_file", file, "--max_new_tokens", "12"}));
  ASSERT_EQ(batch.size(), 3u);
  EXPECT_EQ(answers(generate({"--input_file", file, "--max_new_tokens", "12", "--batch_size", "1"})), batch);
  EXPECT_EQ(answers(generate({"--input_file", file, "--max_new_tokens", "12"}, 2)), batch);
  EXPECT_EQ(
      answers(generate({"--input_file", file, "--max_new_tokens", "12", "--num_beams", "1", "--do_sample", "false"})),
      batch);
}

TEST_F(Generate, AStreamIsTheSameTextAsAWhole) {
  make_model();
  const auto streamed = generate({"--prompt", "A pear is", "--max_new_tokens", "20"});
  const auto whole = generate({"--prompt", "A pear is", "--max_new_tokens", "20", "--stream", "false"});
  ASSERT_EQ(streamed.exit_code, 0) << streamed.err;
  EXPECT_EQ(streamed.out, whole.out);
  EXPECT_EQ(generate({"--prompt", "A pear is", "--max_new_tokens", "20"}, 2).out, whole.out);
}

TEST_F(Generate, AMessageGoesThroughTheChatTemplate) {
  make_model();
  const auto file = write(
      "chat.jsonl", R"({"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]})"
                    "\n");
  const Finished rows = generate({"--input_file", file, "--max_new_tokens", "8"});
  ASSERT_EQ(rows.exit_code, 0) << rows.err;
  const auto row = json::parse(rows.out);
  EXPECT_EQ(row["prompt"],
            "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const Finished one =
      generate({"--message", "Hi", "--system", "Be short.", "--max_new_tokens", "8", "--stream", "false"});
  EXPECT_EQ(one.out, row["generated"][0].get<std::string>() + "\n");
}

TEST_F(Generate, AnAdapterTeachesItsAnswers) {
  make_model();
  const Finished trained = test::run(
      test::Words{TESSERA_BINARY} + test::sft_words(folder_ + "/model", kTinyChat, folder_, "adapter") + test::kLora +
      test::Words{"--max_steps", "60", "--learning_rate", "2e-2", "--lr_scheduler_type", "constant", "--print_model",
                  "false", "--save_strategy", "no", "--per_device_train_batch_size", "8"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::vector<std::string> flags = {"--message", "What is a cat?", "--max_new_tokens", "12"};
  auto with_adapter = flags;
  with_adapter.insert(with_adapter.end(), {"--adapter", folder_ + "/adapter"});
  const Finished before = generate(flags), after = generate(with_adapter), sharded = generate(with_adapter, 2);
  ASSERT_EQ(after.exit_code, 0) << after.err;
  EXPECT_NE(before.out, after.out);
  EXPECT_EQ(after.out.substr(0, 2), "A ") << after.out;
  EXPECT_EQ(sharded.out, after.out);
}

TEST_F(Generate, BadInputIsNamed) {
  make_model();
  const auto expect = [&](const std::vector<std::string>& flags, const std::string& part) {
    const Finished r = generate(flags);
    EXPECT_NE(r.exit_code, 0) << part;
    EXPECT_NE(r.err.find(part), std::string::npos) << part << "\n" << r.err;
  };
  expect({}, "--prompt");
  expect({"--prompt", "a", "--message", "b"}, "exactly one");
  expect({"--input_file", write("bad.jsonl", "{\"prompt\": 3}\n")}, "bad.jsonl:1");
  expect({"--input_file", folder_ + "/none.jsonl"}, "none.jsonl");
  expect({"--prompt", "a", "--adapter", folder_}, "adapter_config.json");
}

}  // namespace
}  // namespace tessera
