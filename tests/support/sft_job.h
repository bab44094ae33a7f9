#pragma once
// Supervised fine-tuning of the tiny chat model: the words of the command, and a test's folder for it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"

namespace tessera::test {

/// The command of a run: the model and the data as they are named, `out` and a cache of the data below the folder.
inline Words sft_words(const std::string& model, const std::string& data, const std::string& folder,
                       const std::string& out) {
  return {"sft",
          "--model_name_or_path",
          model,
          "--dataset_name",
          data,
          "--dataset_cache_dir",
          folder + "/cache",
          "--output_dir",
          folder + "/" + out,
          "--disable_tqdm"};
}

const Words kLora = {"--use_peft_lora", "True", "--lora_r", "4", "--lora_target_modules", "all-linear"};

class SftJob : public testing::Test {
 protected:
  explicit SftJob(const std::string& name) : files_(name), folder_(files_.path()) {}
  /// A model with random weights: "model".
  void SetUp() override { ASSERT_EQ(run({TESSERA_BINARY, "init-model", kTinyChat, folder_ + "/model"}).exit_code, 0); }

  /// flags: of the launcher.
  static Finished launch(int ranks, const Words& words, const Words& flags = {}) {
    return run(Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)} + flags + words,
               {{"HF_HUB_OFFLINE", "1"}});
  }
  /// model, out: below the folder.
  Finished sft(int ranks, const std::string& model, const std::string& out, const Words& flags) const {
    return launch(ranks,
                  sft_words(folder_ + "/" + model, kTinyChat, folder_, out) + Words{"--logging_steps", "1"} + flags,
                  launch_flags_);
  }

  /// Of metrics.jsonl.
  nlohmann::json rows(const std::string& out) const {
    nlohmann::json result = nlohmann::json::array();
    std::ifstream in(folder_ + "/" + out + "/metrics.jsonl");
    for (std::string line; std::getline(in, line);) result.push_back(nlohmann::json::parse(line));
    return result;
  }
  std::vector<double> losses(const std::string& out) const {
    std::vector<double> result;
    for (const auto& row : rows(out))
      if (row.contains("train_loss_exact")) result.push_back(row["train_loss_exact"]);
    return result;
  }

  TempFolder files_;
  std::string folder_;
  Words launch_flags_;  // of sft()
};

}  // namespace tessera::test
