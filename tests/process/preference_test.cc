// Preference training on one and two processes: what is logged and written, and going on from a checkpoint.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/sft_job.h"

namespace tessera {
namespace {

using nlohmann::json;
using test::contains;
using test::Finished;
using test::Words;
using test::operator+;

class Preference : public test::SftJob {
 protected:
  Preference() : SftJob("preference") {}
  void SetUp() override {
    SftJob::SetUp();
    const auto message = [](const char* role, const std::string& text) {
      return json::array({{{"role", role}, {"content", text}}});
    };
    std::filesystem::create_directories(folder_ + "/pairs");
    for (const char* split : {"train", "test"}) {
      std::ofstream file(folder_ + "/pairs/" + split + ".jsonl");
      for (const std::string thing : {"pear", "cat", "apple", "plum", "dog", "cow", "fig", "hen"})
        file << json({{"prompt", message("user", "What is a " + thing + "?")},
                      {"chosen", message("assistant", "A " + thing + " is a word.")},
                      {"rejected", message("assistant", "No idea.")}})
                    .dump()
             << "\n";
    }
  }
  Finished train(const std::string& task, int ranks, const std::string& out, const Words& flags) const {
    return launch(ranks, Words{task, "--model_name_or_path", folder_ + "/model", "--dataset_name", folder_ + "/pairs",
                               "--dataset_cache_dir", folder_ + "/cache", "--output_dir", folder_ + "/" + out,
                               "--logging_steps", "1", "--disable_tqdm", "--bf16", "false", "--learning_rate", "1e-2"} +
                             flags);
  }
  /// Of the log rows.
  std::vector<double> values(const std::string& out, const std::string& name) const {
    std::vector<double> result;
    for (const auto& row : rows(out))
      if (row.contains(name)) result.push_back(row[name]);
    return result;
  }
};

const Words kSmallLora = {"--use_peft_lora", "--lora_r", "4", "--lora_target_modules", "all-linear"};

TEST_F(Preference, DpoOnTwoRanksIsThatOfOneAndGoesOnBitForBit) {
  const Words flags =
      kSmallLora + Words{"--max_steps", "4", "--beta", "0.5", "--eval_strategy", "steps", "--eval_steps", "2"};
  const Finished two = train("dpo", 2, "two", flags + Words{"--per_device_train_batch_size", "2", "--save_steps", "2"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  const auto losses = values("two", "train_loss_exact");
  ASSERT_EQ(losses.size(), 4U);
  EXPECT_NEAR(losses[0], std::log(2.0), 1e-6);  // a new adapter is the reference
  EXPECT_LT(losses[3], losses[0]);
  EXPECT_GT(values("two", "rewards/margins")[3], 0);
  EXPECT_EQ(values("two", "rewards/accuracies")[3], 1);
  EXPECT_EQ(values("two", "eval_rewards/accuracies").size(), 2U);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/two/adapter_model.safetensors"));

  const Finished one = train("dpo", 1, "one", flags + Words{"--per_device_train_batch_size", "4"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto alone = values("one", "train_loss_exact");
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(alone[i], losses[i], 1e-5) << i;

  const Finished on = train(
      "dpo", 2, "on",
      flags + Words{"--per_device_train_batch_size", "2", "--resume_from_checkpoint", folder_ + "/two/checkpoint-2"});
  ASSERT_EQ(on.exit_code, 0) << on.err;
  EXPECT_EQ(read_file(folder_ + "/on/adapter_model.safetensors"),
            read_file(folder_ + "/two/adapter_model.safetensors"));
}

TEST_F(Preference, FullFineTuningAsksTheReferenceBeforeTheFirstStep) {
  const Words flags = {"--max_steps", "2", "--per_device_train_batch_size", "2", "--learning_rate", "1e-3"};
  const Finished whole = train("dpo", 2, "whole", flags);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_NEAR(values("whole", "train_loss_exact")[0], std::log(2.0), 1e-5);
  const Finished named = train("dpo", 2, "named", flags + Words{"--ref_model", folder_ + "/model"});
  ASSERT_EQ(named.exit_code, 0) << named.err;
  EXPECT_EQ(values("named", "train_loss_exact"), values("whole", "train_loss_exact"));
}

TEST_F(Preference, TheOtherPresetsTrain) {
  const Words flags = kSmallLora + Words{"--max_steps", "3", "--per_device_train_batch_size", "2"};
  for (const char* task : {"orpo", "cpo", "kto", "reward"}) {
    const Finished r = train(task, 2, task, flags);
    ASSERT_EQ(r.exit_code, 0) << task << r.err;
    const auto losses = values(task, "train_loss_exact");
    ASSERT_EQ(losses.size(), 3U) << task;
    for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss)) << task;
    if (task != std::string("kto")) {
      EXPECT_LT(losses[2], losses[0]) << task;
    }  // its divergence is clamped first
  }
  EXPECT_EQ(values("kto", "kl").size(), 3U);
  EXPECT_EQ(values("orpo", "log_odds_ratio").size(), 3U);
  EXPECT_EQ(values("reward", "accuracy").size(), 3U);
}

TEST_F(Preference, WrongInputIsSaid) {
  const Finished alone = train("kto", 1, "bad", {"--per_device_train_batch_size", "1"});
  EXPECT_NE(alone.exit_code, 0);
  EXPECT_TRUE(contains(alone.err, "must be above 1")) << alone.err;
  const Finished loss = train("dpo", 1, "bad", {"--loss_type", "sigmoidal"});
  EXPECT_NE(loss.exit_code, 0);
  EXPECT_TRUE(contains(loss.err, "sigmoid_norm")) << loss.err;
  std::ofstream(folder_ + "/pairs/train.jsonl") << R"({"prompt": "a", "chosen": "b"})" << "\n";
  const Finished row = train("dpo", 1, "bad", {});
  EXPECT_NE(row.exit_code, 0);
  EXPECT_TRUE(contains(row.err, "train.jsonl:1") && contains(row.err, "\"rejected\" is missing")) << row.err;
}

}  // namespace
}  // namespace tessera
