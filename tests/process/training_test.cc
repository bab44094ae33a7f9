// What every task that trains promises: no row counts twice, ranks do not matter, a run that goes on prints what it
// would have printed, and evaluating changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Finished;
using test::kDemo;
using test::kTestData;
using test::Words;
using test::operator+;

class Training : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "training_" + std::to_string(getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A model with random weights. change: what its config.json has beside that of `from`.
  std::string model(const std::string& from, const std::string& name, const json& change = json::object()) {
    const std::string config = folder_ + "/" + name + "_config";
    fs::create_directories(config);
    fs::copy(from, config, fs::copy_options::recursive);
    auto all = json::parse(read_file(config + "/config.json"));
    all.update(change);
    write_file_atomically(config + "/config.json", all.dump());
    EXPECT_EQ(test::run({TESSERA_BINARY, "init-model", config, folder_ + "/" + name}).exit_code, 0);
    return folder_ + "/" + name;
  }

  /// Texts of very different lengths.
  std::string texts(int rows) {
    const std::string folder = folder_ + "/texts" + std::to_string(rows);
    fs::create_directories(folder);
    std::ofstream train(folder + "/train.jsonl"), test(folder + "/test.jsonl");
    for (int i = 0; i < rows; ++i) {
      const json row = {
          {"text", std::string(static_cast<std::size_t>(5 + 7 * (i % 6)), static_cast<char>('a' + i % 26))}};
      (i % 5 == 4 ? test : train) << row.dump() << "\n";
    }
    return folder;
  }

  Finished run(const std::string& task, int ranks, const std::string& out, const Words& flags) {
    const Finished r =
        test::run(Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks), task,
                        "--output_dir", folder_ + "/" + out, "--print_model", "false", "--disable_tqdm"} +
                  flags);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r;
  }
  Words sft(const std::string& model, int rows) {
    return {"--model_name_or_path",
            model,
            "--dataset_name",
            texts(rows),
            "--dataset_cache_dir",
            folder_ + "/cache",
            "--lr",
            "1e-2",
            "--save_strategy",
            "no",
            "--logging_steps",
            "1",
            "--max_length",
            "64",
            "--save_model",
            "false"};
  }
  Words seq2seq(const std::string& model) {
    return {"--model_name_or_path", model,  "--dataset_path",  kDemo + "data/Sentences_demo.txt",
            "--learning_rate",      "1e-2", "--logging_steps", "1",
            "--max_eval_steps",     "2",    "--save_model",    "false"};
  }
  Words summarize(const std::string& model) {
    return {"--model_name",
            model,
            "--data_dir",
            kTestData + "/wikihow",
            "--val_rows",
            "8",
            "--max_source_length",
            "48",
            "--max_target_length",
            "16",
            "--save_model",
            "false",
            "--bf16",
            "false"};
  }

  std::vector<json> rows(const std::string& out) {
    std::vector<json> result;
    std::ifstream in(folder_ + "/" + out + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) result.push_back(json::parse(line));
    return result;
  }
  /// The value of each row that has one.
  std::vector<double> column(const std::string& out, const std::string& key) {
    std::vector<double> result;
    for (const auto& row : rows(out))
      if (row.contains(key)) result.push_back(row[key]);
    return result;
  }
  /// The losses of all steps.
  std::vector<double> losses(const std::string& out) {
    const auto exact = column(out, "train_loss_exact");
    return exact.empty() ? column(out, "loss") : exact;
  }

  std::string folder_;
};

TEST_F(Training, NoRowCountsTwiceInAnEpoch) {
  const std::string tiny = model(kTestData + "/tiny_chat", "tiny");
  for (const Words& kind : {Words{}, Words{"--packing"}}) {
    const std::string name = kind.empty() ? "rows" : "packed";
    const Words flags = sft(tiny, 20) + kind + Words{"--num_train_epochs", "2"};
    run("sft", 1, name + "4", flags + Words{"--per_device_train_batch_size", "4"});
    const auto all = column(name + "4", "num_tokens").back() / 2;
    for (const int ranks : {1, 2}) {
      const std::string out = name + "20_" + std::to_string(ranks);
      run("sft", ranks, out, flags + Words{"--per_device_train_batch_size", std::to_string(20 / ranks)});
      EXPECT_EQ(column(out, "num_tokens"), (std::vector<double>{all, 2 * all})) << out;
    }
    if (!kind.empty()) continue;
    const double rows_a_step =
        column("rows20_1", "train_samples_per_second").at(0) / column("rows20_1", "train_steps_per_second").at(0);
    EXPECT_NEAR(rows_a_step, 16, 0.5);
  }
}

TEST_F(Training, ThreeRanksTrainAsOneDoes) {
  json experts = json::parse(read_file(kTestData + "/goldens/A_models/mixtral/config.json"));
  for (const char* of_tokenizer : {"vocab_size", "bos_token_id", "eos_token_id"}) experts.erase(of_tokenizer);
  experts.update({{"output_router_logits", true}, {"router_aux_loss_coef", 0.1}});
  const Words sixteen = {"--num_train_epochs", "2"};
  const std::map<std::string, std::pair<std::string, Words>> jobs = {
      {"rows", {"sft", sft(model(kTestData + "/tiny_chat", "tiny"), 20) + sixteen}},
      {"packed", {"sft", sft(folder_ + "/tiny", 60) + sixteen + Words{"--packing"}}},
      {"experts", {"sft", sft(model(kTestData + "/tiny_chat", "experts", experts), 20) + sixteen}},
      {"pairs", {"seq2seq", seq2seq(model(kDemo + "model", "t5")) + sixteen + Words{"--max_train_samples", "16"}}}};
  for (const auto& [name, job] : jobs) {
    const auto& [task, flags] = job;
    const auto batches = [&](const std::string& out, int ranks, int batch, int accumulation) {
      run(task, ranks, name + out,
          flags + Words{"--per_device_train_batch_size", std::to_string(batch), "--gradient_accumulation_steps",
                        std::to_string(accumulation)});
      return losses(name + out);
    };
    const auto one = batches("1", 1, 12, 1);
    ASSERT_GE(one.size(), 4u) << name;
    auto others = std::vector{batches("2", 2, 6, 1), batches("3", 3, 4, 1)};
    if (name != "experts") others.push_back(batches("parts", 1, 4, 3));  // their balance is of a batch, not of a step
    for (const auto& other : others) {
      ASSERT_EQ(other.size(), one.size()) << name;
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i], one[i], 2e-5 * one[i]) << name << " " << i;
    }
  }
  // Batches are counted, as Trainer counts them: an epoch's last step may have fewer than the others.
  EXPECT_EQ(column("rowsparts", "epoch"), (std::vector<double>{0.75, 1, 1.75, 2, 2}));
}

TEST_F(Training, DropoutOfSummarizeDependsOnTheRowsAndNotOnTheRanks) {
  const Words flags =
      summarize(model(kDemo + "model", "t5", {{"dropout_rate", 0.3}})) + Words{"--train_rows", "8", "--epochs", "1"};
  run("summarize", 1, "one", flags + Words{"--batch_size", "4"});
  run("summarize", 2, "two", flags + Words{"--batch_size", "2"});
  const auto one = losses("one"), two = losses("two");
  ASSERT_EQ(one.size(), 2u);
  ASSERT_EQ(two.size(), 2u);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5 * one[i]);
}

/// Without what depends on the clock.
json without_times(json row) {
  for (const char* key : {"time",
                          "step_seconds",
                          "tokens_per_second",
                          "model_flops_utilization",
                          "train_runtime",
                          "train_samples_per_second",
                          "train_steps_per_second",
                          "train_tokens_per_second",
                          "eval_runtime",
                          "eval_samples_per_second",
                          "eval_steps_per_second",
                          "eval_seconds",
                          "train_seconds",
                          "memory",
                          "measured_memory_mib",
                          "measured_own_mib",
                          "measured_files_mib",
                          "measured_shared_mib",
                          "measured_copies_mib",
                          "forward_and_backward_seconds",
                          "update_seconds",
                          "evaluation_seconds",
                          "saving_seconds"})
    row.erase(key);
  return row;
}

TEST_F(Training, ARunThatGoesOnPrintsWhatItWouldHavePrinted) {
  const std::string tiny = model(kTestData + "/tiny_chat", "tiny"), t5 = model(kDemo + "model", "t5");
  struct Job {
    std::string name, task;
    Words flags;
    int checkpoint;
  };
  const Words every_step = {"--save_strategy", "steps", "--save_steps", "1"};
  const Words of_sft =
      sft(tiny, 20) + every_step + Words{"--per_device_train_batch_size", "4", "--num_train_epochs", "2"};
  const std::vector<Job> jobs = {
      // Eight steps, four an epoch; a checkpoint between two log rows, and one at an epoch's end.
      {"steps", "sft", of_sft + Words{"--logging_steps", "3", "--eval_strategy", "epoch"}, 2},
      {"epochs", "sft", of_sft + Words{"--logging_strategy", "epoch", "--eval_strategy", "epoch"}, 4},
      {"seq2seq", "seq2seq",
       seq2seq(t5) + every_step +
           Words{"--max_train_samples", "16", "--per_device_train_batch_size", "4", "--num_train_epochs", "2",
                 "--lora_dropout", "0.2"},
       6},
      {"summarize", "summarize",
       summarize(t5) + every_step + Words{"--train_rows", "16", "--batch_size", "4", "--epochs", "2"}, 3},
  };
  for (const auto& [name, task, flags, checkpoint] : jobs) {
    run(task, 1, name, flags);
    const std::string from = folder_ + "/" + name + "/checkpoint-" + std::to_string(checkpoint);
    const Finished r = run(task, 1, name + "_on", flags + Words{"--resume_from_checkpoint", from});
    EXPECT_NE(r.out.find("Continuing from global step"), std::string::npos) << name;
    EXPECT_EQ(r.out.find("no running averages"), std::string::npos) << name;
    EXPECT_EQ(r.out.find("Flags that the run had otherwise"), std::string::npos) << r.out;
    const auto whole = rows(name), on = rows(name + "_on");
    ASSERT_GE(on.size(), 2u) << name;
    ASSERT_GE(whole.size(), on.size()) << name;
    for (std::size_t i = 0; i < on.size(); ++i)
      EXPECT_EQ(without_times(on[i]), without_times(whole[whole.size() - on.size() + i])) << name << " row " << i;
  }
  const Words otherwise = {"--resume_from_checkpoint", "true", "--lr", "1e-3", "--num_train_epochs", "3"};
  const Finished r = run("sft", 1, "steps", jobs[0].flags + otherwise);
  EXPECT_SAYS(r.out,
              "  Flags that the run had otherwise: --learning_rate 0.001 (was 0.01), --num_train_epochs 3 (was 2)\n");
}

TEST_F(Training, OnlyEvaluatingWritesNothingButMetrics) {
  struct Job {
    std::string task, loss, off;
    Words flags;
  };
  Words of_sft = sft(model(kTestData + "/tiny_chat", "tiny"), 20), of_pairs = seq2seq(model(kDemo + "model", "t5"));
  for (auto* flags : {&of_sft, &of_pairs}) flags->resize(flags->size() - 2);  // results would be saved
  const std::vector<Job> jobs = {
      {"sft", "eval_loss", "--do_eval", of_sft + Words{"--use_peft_lora", "true", "--save_strategy", "epoch"}},
      {"seq2seq", "eval_loss", "--do_eval", of_pairs},
      {"summarize", "eval_loss", "--run_validation", summarize(folder_ + "/t5") + Words{"--train_rows", "8"}}};
  for (const auto& [task, loss, off, flags] : jobs) {
    const Finished r = run(task, 2, task, flags + Words{"--do_train", "false"});
    EXPECT_EQ(r.out.find("saved in"), std::string::npos) << r.out;
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(folder_ + "/" + task))
      if (entry.path().filename() != ".tessera.lock") left.push_back(entry.path().filename());
    std::sort(left.begin(), left.end());
    EXPECT_EQ(left, (Words{"all_results.json", "eval_results.json", "metrics.jsonl"})) << task;
    const json results = json::parse(read_file(folder_ + "/" + task + "/eval_results.json"));
    EXPECT_EQ(results.at(loss), column(task, loss).at(0)) << task;
    EXPECT_GT(results.at("eval_samples"), 0) << task;
    EXPECT_EQ(r.out.find("***** eval metrics *****\n") != std::string::npos, task == "sft") << r.out;
    EXPECT_EQ(column(task, loss).size(), 1u) << task;
    EXPECT_TRUE(column(task, "loss").empty() && column(task, "train_loss").empty()) << task;
    const Finished nothing = test::run(Words{TESSERA_BINARY, task, "--output_dir", folder_ + "/none"} + flags +
                                       Words{"--do_train", "false", off, "false"});
    EXPECT_EQ(nothing.exit_code, 2) << nothing.err;
    EXPECT_NE(nothing.err.find(off), std::string::npos) << nothing.err;
  }
}

TEST_F(Training, ANewRunDoesNotBeginAmongTheCheckpointsOfAnother) {
  const Words flags = sft(model(kTestData + "/tiny_chat", "tiny"), 20) +
                      Words{"--max_steps", "1", "--save_strategy", "steps", "--save_steps", "1"};  // no result is saved
  run("sft", 1, "out", flags);
  const Words again = Words{TESSERA_BINARY, "sft", "--output_dir", folder_ + "/out"} + flags;
  const Finished r = test::run(again);
  EXPECT_EQ(r.exit_code, 4) << r.err;
  EXPECT_SAYS(r.err, "out/checkpoint-1' is of an earlier run. --resume_from_checkpoint true goes on from");
  for (const Words& more :
       {Words{"--overwrite_output_dir"}, Words{"--resume_from_checkpoint", "auto"}, Words{"--do_train", "false"}})
    EXPECT_EQ(test::run(again + more).exit_code, 0) << more[0];
  const Words launch = {TESSERA_BINARY, "launch", "--use_cpu", "--num_processes", "1", "--max_restarts", "1"};
  EXPECT_EQ(test::run(launch + again).exit_code, 0) << "ranks that are started again begin anew";
}

TEST_F(Training, ARunThatFailsOnItsDataLeavesNoFolder) {
  const auto decoder = model(kTestData + "/tiny_chat", "tiny"), t5 = model(kDemo + "model", "t5");
  fs::create_directories(folder_ + "/data");
  std::ofstream(folder_ + "/data/train.jsonl") << R"({"no": "known column"})" << "\n";
  std::ofstream(folder_ + "/data/wikihowAll.csv") << "no,known column\n";
  const auto out = folder_ + "/above/out";
  for (const std::string task : {"sft", "dpo", "orpo", "cpo", "kto", "reward", "classify", "seq2seq", "summarize"}) {
    const bool is_pairs = task == "seq2seq" || task == "summarize";
    const Finished r =
        test::run(Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", "2", task, "--model_name_or_path",
                        is_pairs ? t5 : decoder, "--dataset_path", folder_ + "/data", "--output_dir", out});
    EXPECT_NE(r.exit_code, 0) << task;
    EXPECT_SAYS(r.err, folder_ + "/data/");
    EXPECT_FALSE(fs::exists(folder_ + "/above")) << task;
  }
}

TEST_F(Training, LabelSmoothingAndDynamicFineTuningAreLossesOfSft) {
  const Words flags = sft(model(kTestData + "/tiny_chat", "tiny"), 20) +
                      Words{"--max_steps", "1", "--eval_strategy", "steps", "--per_device_train_batch_size", "16"};
  const auto first = [&](const std::string& name, const Words& more) {
    run("sft", 1, name, flags + more);
    EXPECT_EQ(column(name, "eval_perplexity").empty(), name != "nll");
    return std::pair(losses(name).at(0), column(name, "eval_loss").at(0));
  };
  const auto nll = first("nll", {"--loss_type", "nll"}), dft = first("dft", {"--loss_type", "dft"});
  const auto smoothed = first("smoothed", {"--label_smoothing_factor", "1"});
  // Of 260 tokens, after few steps, each has a probability near 1 / 260.
  EXPECT_NEAR(nll.first, std::log(260), 1);
  EXPECT_NEAR(dft.first, nll.first / 260, nll.first / 260);
  EXPECT_NEAR(smoothed.first, std::log(260), 1);
  EXPECT_LT(nll.second, nll.first);  // what is trained is what is evaluated
  EXPECT_GT(smoothed.second, nll.second);
  EXPECT_LT(dft.second, nll.second / 10);
  const Finished both = test::run(Words{TESSERA_BINARY, "sft", "--output_dir", folder_ + "/both"} + flags +
                                  Words{"--loss_type", "dft", "--label_smoothing_factor", "0.1"});
  EXPECT_EQ(both.exit_code, 2) << both.err;
  EXPECT_NE(both.err.find("--label_smoothing_factor"), std::string::npos) << both.err;
}

}  // namespace
}  // namespace tessera
