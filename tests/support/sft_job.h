#pragma once
// Supervised fine-tuning of the tiny chat model, in a folder of its own.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_folder.h"

namespace tessera::test {

class SftJob : public testing::Test {
 protected:
  explicit SftJob(const std::string& name) : files_(name), folder_(files_.path()) {}
  /// A model with random weights: "model".
  void SetUp() override { ASSERT_EQ(run({TESSERA_BINARY, "init-model", kTinyChat, folder_ + "/model"}).exit_code, 0); }

  static Finished launch(int ranks, const Words& words) {
    return run(Words{TESSERA_BINARY, "launch", "--cpu", "--num_processes", std::to_string(ranks)} + words);
  }
  /// model, out: below the folder.
  Finished sft(int ranks, const std::string& model, const std::string& out, const Words& flags) const {
    return launch(ranks, Words{"sft", "--model_name_or_path", folder_ + "/" + model, "--dataset_name", kTinyChat,
                               "--dataset_cache_dir", folder_ + "/cache", "--output_dir", folder_ + "/" + out,
                               "--logging_steps", "1", "--disable_tqdm"} +
                             flags);
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
};

}  // namespace tessera::test
