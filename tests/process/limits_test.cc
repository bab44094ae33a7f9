// Rows of docs/limits.md that need whole programs: what the Python stack cannot do, or does wrongly, on CPU ranks.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace tessera {
namespace {

class Limits : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "limits_" + std::to_string(::getpid()) + "/";
    std::filesystem::create_directories(folder_);
    ASSERT_EQ(test::run({TESSERA_BINARY, "init-model", kModel, folder_ + "t5"}).exit_code, 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::vector<std::string> words(std::vector<std::string> first, const std::vector<std::string>& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
  }
  static test::Finished launch(int ranks, const std::vector<std::string>& more) {
    return test::run(words({TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)}, more));
  }
  std::vector<std::string> seq2seq(const std::string& output, const std::vector<std::string>& more = {}) const {
    return words(
        {"seq2seq", "--model_name_or_path", folder_ + "t5", "--dataset_path", kSentences, "--output_dir",
         folder_ + output, "--max_steps", "2", "--do_eval", "false", "--disable_tqdm", "--print_model", "true"},
        more);
  }

  static inline const std::string kExamples = std::string(TESSERA_TEST_DATA) + "/../../examples/demo/";
  static inline const std::string kModel = kExamples + "model";
  static inline const std::string kSentences = kExamples + "data/Sentences_demo.txt";
  std::string folder_;
};

// A run waited for ever for somebody to write into them.
TEST_F(Limits, PipesAndFoldersAreRefusedByName) {
  namespace fs = std::filesystem;
  const auto refused = [&](const std::string& file, const char* found, const std::vector<std::string>& command) {
    SCOPED_TRACE(file + ", " + found);
    const bool there = fs::exists(file);
    if (there) fs::rename(file, file + ".kept");
    if (std::string(found) == "a folder")
      fs::create_directory(file);
    else
      ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    const auto r = test::Subprocess(words({TESSERA_BINARY}, command)).finish(std::chrono::seconds(20));
    const auto name = fs::path(file).filename().string();
    EXPECT_TRUE(test::contains(r.err, "/" + name + "': expected a file, found " + found)) << r.err;
    fs::remove(file);
    if (there) fs::rename(file + ".kept", file);
  };
  const std::string model = folder_ + "t5/", rows = folder_ + "rows.jsonl", yaml = folder_ + "accelerate.yaml";
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"})
    refused(model + name, "a named pipe", seq2seq("out"));
  refused(model + "config.json", "a folder", seq2seq("out"));
  refused(model + "generation_config.json", "a named pipe", {"generate", "--model", model, "--prompt", "x"});
  refused(model + "model.safetensors", "a named pipe", {"estimate-memory", model});
  refused(rows, "a named pipe", seq2seq("out", {"--dataset_path", rows}));
  refused(yaml, "a named pipe", {"launch", "--config_file", yaml, "env"});
}

TEST_F(Limits, CpuAndFsdpTogether) {
  const auto r = launch(2, words({"--use_fsdp"}, seq2seq("out")));
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(test::contains(r.out, "shard 2 x ")) << r.out;
}

TEST_F(Limits, FsdpVariablesAreObeyedUnderTorchrun) {
  const std::vector<std::string> command = words({TESSERA_BINARY}, seq2seq("out"));
  const auto rank = [&](int r) -> test::Variables {
    return {{"RANK", std::to_string(r)},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", std::to_string(r)},
            {"LOCAL_WORLD_SIZE", "2"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(20000 + ::getpid() % 12000)},
            {"ACCELERATE_USE_FSDP", "true"},
            {"ACCELERATE_USE_CPU", "true"},
            {"FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP"},
            {"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
            {"FSDP_TRANSFORMER_CLS_TO_WRAP", "T5Block"},
            {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true"}};
  };
  test::Subprocess zero(command, rank(0)), one(command, rank(1));
  const auto first = zero.finish(), second = one.finish();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_TRUE(test::contains(first.out, "shard 2 x ")) << first.out;
  EXPECT_TRUE(test::contains(first.out, "(0): FullyShardedDataParallel(")) << first.out;  // blocks are units
  const std::string without_effect = "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD=true has no effect";
  EXPECT_TRUE(test::contains(first.err, without_effect)) << first.err;
  EXPECT_FALSE(test::contains(second.err, without_effect)) << "once is enough";
}

TEST_F(Limits, AWholeModelIsSavedAndReadBack) {
  const auto r = launch(2, seq2seq("out", {"--use_peft_lora", "false"}));
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto before = std::filesystem::file_size(folder_ + "t5/model.safetensors");
  const auto after = std::filesystem::file_size(folder_ + "out/model.safetensors");
  EXPECT_LT(after, before + before / 100) << "a tied table is written once";
  const std::vector<std::string> prompt = {"generate",         "--model", folder_ + "out", "--prompt", "Profit rose.",
                                           "--max_new_tokens", "4"};
  const auto answer = launch(1, prompt);
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
}

TEST_F(Limits, GenerationUnderShardingEqualsOneProcess) {
  const std::vector<std::string> prompt = {"generate", "--model",          folder_ + "t5",
                                           "--prompt", "Profit rose to 7", "--max_new_tokens",
                                           "8",        "--num_beams",      "2"};
  const auto one = launch(1, prompt), two = launch(2, prompt), three = launch(3, prompt);
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_FALSE(one.out.empty());
  EXPECT_EQ(two.out, one.out) << two.err;
  EXPECT_EQ(three.out, one.out) << three.err;
}

TEST_F(Limits, MergingUnderShardingEqualsOneProcess) {
  ASSERT_EQ(launch(2, seq2seq("adapter", {"--learning_rate", "1e-2"})).exit_code, 0);
  for (const int ranks : {1, 2}) {
    const auto r = launch(ranks, {"merge", "--model", folder_ + "t5", "--adapter", folder_ + "adapter", "--output_dir",
                                  folder_ + "merged" + std::to_string(ranks)});
    ASSERT_EQ(r.exit_code, 0) << r.err;
  }
  const std::string merged = read_file(folder_ + "merged1/model.safetensors");
  EXPECT_TRUE(merged == read_file(folder_ + "merged2/model.safetensors"));
  EXPECT_FALSE(merged == read_file(folder_ + "t5/model.safetensors"));
}

TEST_F(Limits, TenRunsEndWell) {
  for (int run = 0; run < 10; ++run) {
    const auto r = launch(2, seq2seq("out" + std::to_string(run), {"--save_model", "false"}));
    ASSERT_EQ(r.exit_code, 0) << "run " << run << "\n" << r.err;
  }
}

}  // namespace
}  // namespace tessera
