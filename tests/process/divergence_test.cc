// Ranks that do not do the same: one stands still, is slow, ends early, has other weights, rows in another order.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "support/program.h"
#include "support/ranks.h"
#include "support/sft_job.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Finished;
using test::Subprocess;
using test::Words;
using test::operator+;

class Divergence : public test::SftJob {
 protected:
  Divergence() : SftJob("divergence") {}

  Words flags(const Words& more) const {
    return test::sft_words(folder_ + "/model", test::kTinyChat, folder_, "out") +
           Words{"--max_seq_length", "64", "--print_model", "false", "--save_strategy", "no"} + more;
  }
  static Words launched(int ranks, const Words& words) {
    return Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)} + words;
  }
  /// `more` counts for rank 1 of two alone.
  static Finished with_another_rank_1(const Words& words, const Words& more) {
    std::string differs;
    for (const auto& word : more) differs += " '" + word + "'";
    const std::string script = "if [ $RANK = 1 ]; then set -- \"$@\"" + differs + "; fi; exec \"$0\" \"$@\"";
    return test::run(launched(2, {"/bin/sh", "-c", script, TESSERA_BINARY}) + words,
                     {{"TESSERA_COMM_TIMEOUT_S", "20"}});
  }
  Finished with_another_rank_1(const Words& more) const {
    return with_another_rank_1(flags({"--max_steps", "4", "--per_device_train_batch_size", "2"}), more);
  }
  /// A copy of the data, "other", with another file; rank 1 reads that. What the run ends with.
  std::string with_another_file(const std::string& file, const std::function<void(std::vector<std::string>&)>& change,
                                const Words& more = {}) const {
    const std::string to = folder_ + "/other";
    fs::remove_all(to);
    fs::copy(test::kTinyChat, to);
    std::vector<std::string> lines;
    std::ifstream in(to + "/" + file);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    change(lines);
    std::ofstream out(to + "/" + file);
    for (const auto& line : lines) out << line << "\n";
    out.close();
    const Finished r = with_another_rank_1(Words{"--dataset_name", to} + more);
    EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
    EXPECT_EQ(r.out.find("Running training"), std::string::npos) << r.out;
    return r.err;
  }
  std::string status_with(const std::string& text) const {
    std::string said;
    for (int tries = 0; tries < 100 && said.find(text) == std::string::npos; ++tries) {
      std::this_thread::sleep_for(100ms);
      said = test::run({TESSERA_BINARY, "status", folder_ + "/out"}).out;
    }
    return said;
  }
};

TEST_F(Divergence, ARankThatStandsStillIsNamedWithWhatEachRankWaitsFor) {
  Subprocess run(launched(3, flags({"--max_steps", "100000", "--logging_steps", "1"})),
                 {{"TESSERA_COMM_TIMEOUT_S", "2"}});
  ASSERT_TRUE(run.wait_for_output("'loss'", 60s)) << run.finish(0s).err;
  const auto victim = test::ranks_of(run.pid()).at(1);
  ASSERT_EQ(::kill(victim, SIGSTOP), 0);
  const auto stopped = std::chrono::steady_clock::now();
  const std::string said = status_with("The others wait for rank 1");
  const Finished r = run.finish(60s);
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, 2s + 10s);
  EXPECT_EQ(r.exit_code, 5) << r.err;
  for (const std::string& text : {r.err, said}) {  // unit, operation, step, rows: of the rank that waits and of the one
    EXPECT_SAYS(text, "rank 1");
    EXPECT_SAYS(text, "operation ");
    EXPECT_SAYS(text, "step ");
    EXPECT_SAYS(text, "row");
  }
  EXPECT_SAYS(r.err, "no progress for 2000 ms: rank 1 has ");
  const auto of_others = r.err.find("; rank 2 has ", r.err.find("no progress for 2000 ms: rank 1 has "));
  const auto of_rank_0 = r.err.find("; rank 0 has ", r.err.find("no progress for 2000 ms: rank 1 has "));
  EXPECT_TRUE(of_others != std::string::npos || of_rank_0 != std::string::npos) << r.err;
  EXPECT_SAYS(said, "which is stopped by a signal; 'kill -CONT " + std::to_string(victim) + "' lets it go on");
}

TEST_F(Divergence, ARankThatIsSlowIsWaitedForAndNamedByStatus) {
  Subprocess run(launched(2, flags({"--max_steps", "100000", "--logging_steps", "1"})));
  ASSERT_TRUE(run.wait_for_output("'loss'", 60s)) << run.finish(0s).err;
  const auto victim = test::ranks_of(run.pid()).at(1);
  std::string said;
  for (int tries = 0; tries < 20 && said.find("The others wait for rank 1") == std::string::npos; ++tries) {
    ::kill(victim, SIGSTOP);
    std::this_thread::sleep_for(400ms);
    said = test::run({TESSERA_BINARY, "status", folder_ + "/out"}).out;
    ::kill(victim, SIGCONT);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_SAYS(said, "The others wait for rank 1");
  EXPECT_SAYS(said, "; waits for rank 1 for ");
  EXPECT_TRUE(run.running());
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(60s).exit_code, 128 + SIGTERM);
}

TEST_F(Divergence, OtherWeightsOnOneRankAreFound) {
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", test::kTinyChat, folder_ + "/other", "--seed", "7"}).exit_code, 0);
  const Finished r = with_another_rank_1({"--model_name_or_path", folder_ + "/other"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "ranks 0 and 1 read different weights: '");
}

TEST_F(Divergence, TokenisedRowsThatAreCutDuringARunEndItByName) {
  Subprocess run(launched(2, flags({"--max_steps", "1000000", "--logging_steps", "1"})));
  ASSERT_TRUE(run.wait_for_output("'loss'", std::chrono::seconds(60)));
  for (const auto& entry : fs::directory_iterator(folder_ + "/cache"))
    if (entry.file_size() > 0) fs::resize_file(entry.path(), entry.file_size() / 2);
  const Finished r = run.finish();
  EXPECT_EQ(r.exit_code, 3) << r.err;
  EXPECT_SAYS(r.err, folder_ + "/cache/");
  EXPECT_SAYS(r.err, "Tokenised rows are read where they lie in it: start again, and they are made anew");
  EXPECT_EQ(test::run(launched(2, flags({"--max_steps", "2"}))).exit_code, 0);
}

TEST_F(Divergence, ARowLessOnOneRankIsFoundBeforeTheFirstStep) {
  const auto said = with_another_file("train.jsonl", [](auto& lines) { lines.pop_back(); });
  EXPECT_SAYS(said, "rank 1 does not have the rows to train on that rank 0 has: rank 1 has 95 rows of ");
  EXPECT_SAYS(said, ", rank 0 has 96 rows of ");
  EXPECT_SAYS(said, "the first 95 are the same. Give all ranks the same data files");
}

TEST_F(Divergence, OneOtherWordOnOneRankIsFoundBeforeTheFirstStep) {
  const auto said =
      with_another_file("train.jsonl", [](auto& lines) { lines[40].replace(lines[40].find("is a"), 4, "is I"); });
  EXPECT_SAYS(said, "the first that differs is number 41, of ");
}

TEST_F(Divergence, RowsOfAFileInAnotherOrderOnOneRankAreFoundBeforeTheFirstStep) {
  const auto said = with_another_file("train.jsonl", [](auto& lines) { std::swap(lines[0], lines[1]); });
  EXPECT_SAYS(said, "the first that differs is number 1, of ");
}

TEST_F(Divergence, OtherRowsToEvaluateOnAreFoundBeforeTheFirstStep) {
  const auto said = with_another_file("test.jsonl", [](auto& lines) { lines.resize(9); });
  EXPECT_SAYS(said, "rank 1 does not have the rows to evaluate on that rank 0 has: rank 1 has 9 rows of ");
}

// A file more or less is none of the Hub's business.
TEST_F(Divergence, ASplitThatOneRankLacksIsFoundBeforeTheFirstStep) {
  const auto said = with_another_file("test.jsonl", [](auto&) {}, {"--splits", "train"});
  EXPECT_SAYS(said, "rank 1 has 0 rows of 0 tokens, rank 0 has 16 rows of ");
}

TEST_F(Divergence, AnotherTokenizerOnOneRankIsNamed) {
  fs::copy(test::kTinyChat, folder_ + "/tokenizer");
  auto tokenizer = nlohmann::json::parse(read_file(folder_ + "/tokenizer/tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["e"]);
  write_file_atomically(folder_ + "/tokenizer/tokenizer.json", tokenizer.dump());
  const Finished r = with_another_rank_1({"--tokenizer_name_or_path", folder_ + "/tokenizer"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "rank 1 does not have the rows to train on that rank 0 has");
  EXPECT_SAYS(r.err, "Their tokenizers or chat templates are not the same");
}

TEST_F(Divergence, AnotherChatTemplateOnOneRankIsFound) {
  write_file_atomically(folder_ + "/template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const Finished r = with_another_rank_1({"--chat_template_path", folder_ + "/template.jinja"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "the first that differs is number 1, of ");
  EXPECT_SAYS(r.err, "Their tokenizers or chat templates are not the same");
}

// A host's cache of tokenised rows outlives files that are replaced with their times and sizes kept.
TEST_F(Divergence, OtherCachedRowsOnOneRankAreFound) {
  const Words cached = {"--dataset_cache_dir", folder_ + "/cache1"};
  ASSERT_EQ(
      test::run(Words{TESSERA_BINARY} + flags(Words{"--max_steps", "1", "--save_model", "false"} + cached)).exit_code,
      0);
  std::string changed;
  for (const auto& entry : fs::directory_iterator(folder_ + "/cache1"))
    if (entry.path().filename().string().starts_with("sft-train") && entry.path().extension() == ".rows")
      changed = entry.path();
  std::string bytes = read_file(changed);
  bytes.at(8 + 4 * 5) ^= 1;  // the sixth token of the first row
  write_file_atomically(changed, bytes);
  const Finished r = with_another_rank_1(cached);
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "the first that differs is number 1, of ");
  EXPECT_SAYS(r.err, "remove the tokenised rows that an earlier run left in --dataset_cache_dir");
}

TEST_F(Divergence, AnotherSeedOnOneRankIsFoundBeforeTheFirstStep) {
  const Finished r = with_another_rank_1({"--seed", "7"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "rank 1 does not draw rows as rank 0 does: rank 1 by the seed 7 and 7, rank 0 by 42 and 42");
}

TEST_F(Divergence, EveryTaskComparesItsRows) {
  const std::string pairs = folder_ + "/pairs", t5 = folder_ + "/t5";
  for (const int rows : {4, 3}) {
    fs::create_directories(pairs + std::to_string(rows));
    std::ofstream file(pairs + std::to_string(rows) + "/train.jsonl");
    for (int i = 0; i < rows; ++i)
      file << R"({"prompt": "What is )" << i << R"(?", "chosen": " A word.", "rejected": " No idea."})" << "\n";
  }
  ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", test::kDemo + "model", t5}).exit_code, 0);
  const std::vector<std::pair<Words, Words>> tasks = {
      {{"dpo", "--model_name_or_path", folder_ + "/model", "--dataset_name", pairs + "4", "--dataset_cache_dir",
        folder_ + "/cache"},
       {"--dataset_name", pairs + "3"}},
      {{"classify", "--model", folder_ + "/model", "--dataset_path", test::kTestData + "/classify", "--label_column",
        "sentiment"},
       {"--max_length", "5"}},
      {{"seq2seq", "--model_name_or_path", t5, "--dataset_path", test::kDemo + "data/Sentences_demo.txt"},
       {"--max_length", "7"}},
      {{"summarize", "--model_name", t5, "--data_dir", test::kTestData + "/wikihow", "--train_rows", "16", "--val_rows",
        "8"},
       {"--train_rows", "15"}},
  };
  for (const auto& [words, more] : tasks) {
    const Finished r = with_another_rank_1(words + Words{"--output_dir", folder_ + "/out", "--disable_tqdm"}, more);
    EXPECT_EQ(r.exit_code, 3) << words[0] << r.out << r.err;
    EXPECT_SAYS(r.err, "rank 1 does not have the rows to train on that rank 0 has") << words[0];
  }
}

TEST_F(Divergence, ARankThatWouldEndEarlyIsFoundInTheFirstStep) {
  const Finished r = with_another_rank_1({"--max_steps", "3"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, " and 4 in all; rank 1 has ");
  EXPECT_SAYS(r.err, " and 3 in all. Give all ranks the same");
}

TEST_F(Divergence, AnotherAccumulationOnOneRankIsFoundInTheFirstStep) {
  const Finished r = with_another_rank_1({"--gradient_accumulation_steps", "2"});
  EXPECT_EQ(r.exit_code, 3) << r.out << r.err;
  EXPECT_SAYS(r.err, "step 1: ranks do not take the same step: rank 0 has ");
}

}  // namespace
}  // namespace tessera
