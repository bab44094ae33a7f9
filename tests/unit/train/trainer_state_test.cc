#include "train/trainer_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::train {
namespace {

TEST(TrainerState, IsReadBackAsItWasWritten) {
  TrainerState s;
  s.global_step = 8;
  s.max_steps = 12;
  s.epoch = 0.5;
  s.best_metric = 1.25;
  s.best_global_step = 4;
  s.best_model_checkpoint = "out/checkpoint-4";
  s.num_input_tokens_seen = 1000;
  s.early_stopping_patience = 3;
  s.early_stopping_threshold = 0.5;
  s.evaluations_without_improvement = 2;
  s.loss = {3.5, 8};
  s.epoch_loss = {1.25, 3};
  s.window = {{0.75, 2}, 0.5, 96};
  s.recent_losses = RecentLosses({2.5, 2.25});
  s.loss_scale = 1024;
  s.steps_at_loss_scale = 7;
  s.skipped_steps = 2;
  s.schedule = "{\"best\":1.0}";
  s.log_history.push_back({{"loss", 0.5}, {"step", 8}});
  const std::string file = ::testing::TempDir() + "trainer_state_" + std::to_string(getpid()) + ".json";
  write_file_atomically(file, s.to_json());
  const TrainerState r = TrainerState::read(file);
  EXPECT_EQ(r.to_json(), [&] {
    TrainerState expected = s;
    expected.early_stopping_patience = 0;
    expected.num_train_epochs = expected.logging_steps = 0;  // settings come from the new run's flags
    expected.eval_steps = expected.save_steps = expected.train_batch_size = 0;
    return expected.to_json();
  }());
  write_file_atomically(file, "{\"global_step\": 3}");
  EXPECT_THROW((void)TrainerState::read(file), CheckpointError);
  std::filesystem::remove(file);
}

TEST(TrainerState, OfTrainerMayHoldPythonsNaN) {
  const std::string file = ::testing::TempDir() + "python_state_" + std::to_string(getpid()) + ".json";
  write_file_atomically(file, R"({"global_step": 3, "max_steps": 9, "epoch": 0.5, "best_metric": NaN,
                                  "log_history": [{"loss": NaN, "grad_norm": Infinity, "step": 3}]})");
  const TrainerState r = TrainerState::read(file);
  EXPECT_EQ(r.global_step, 3);
  EXPECT_FALSE(r.best_metric);
  EXPECT_EQ(r.log_history.at(0).at("step"), 3);
  std::filesystem::remove(file);
}

TEST(TrainerState, SaysHowEarlyStoppingStandsAsTransformersDoes) {
  // EarlyStoppingCallback.state() and TrainerControl.state() of transformers 4.57.
  TrainerState s;
  s.max_steps = 12;
  s.global_step = 8;
  s.evaluations_without_improvement = 2;
  const auto callbacks = [&] { return nlohmann::json::parse(s.to_json())["stateful_callbacks"]; };
  EXPECT_FALSE(callbacks().contains("EarlyStoppingCallback"));
  s.early_stopping_patience = 3;
  s.early_stopping_threshold = 0.5;
  EXPECT_EQ(callbacks()["EarlyStoppingCallback"],
            nlohmann::json::parse(R"({"args": {"early_stopping_patience": 3, "early_stopping_threshold": 0.5},
                                      "attributes": {"early_stopping_patience_counter": 2}})"));
  EXPECT_EQ(callbacks()["TrainerControl"]["args"]["should_training_stop"], false);
  s.evaluations_without_improvement = 3;
  EXPECT_EQ(callbacks()["TrainerControl"]["args"]["should_training_stop"], true);
}

TEST(TrainerState, OfAnOlderVersionHasTheAverageOfAllStepsOnly) {
  TrainerState s;
  s.global_step = 4;
  auto json = nlohmann::json::parse(s.to_json());
  json["stateful_callbacks"]["TesseraRun"]["attributes"] = {{"loss_sum", 10.0}, {"schedule", "{}"}};
  const std::string file = ::testing::TempDir() + "older_state_" + std::to_string(getpid()) + ".json";
  write_file_atomically(file, json.dump());
  const TrainerState older = TrainerState::read(file);
  EXPECT_FALSE(older.has_meters);
  EXPECT_EQ(older.loss.mean(), 2.5);
  EXPECT_EQ(older.epoch_loss.steps, 0);
  EXPECT_EQ(older.window.loss.steps, 0);
  std::filesystem::remove(file);
}

TEST(TrainerState, HasTheKeysOfTransformersAndNoOthers) {
  // TrainerState(**json) there fails for a key that it does not know.
  const auto json = nlohmann::json::parse(TrainerState{}.to_json());
  const std::vector<std::string> known = {"best_global_step",
                                          "best_metric",
                                          "best_model_checkpoint",
                                          "epoch",
                                          "eval_steps",
                                          "global_step",
                                          "is_hyper_param_search",
                                          "is_local_process_zero",
                                          "is_world_process_zero",
                                          "log_history",
                                          "logging_steps",
                                          "max_steps",
                                          "num_input_tokens_seen",
                                          "num_train_epochs",
                                          "save_steps",
                                          "stateful_callbacks",
                                          "total_flos",
                                          "train_batch_size",
                                          "trial_name",
                                          "trial_params"};
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, known);
}

TEST(TrainerState, ARowIsPrintedAsPythonPrintsADict) {
  const nlohmann::ordered_json row = {{"loss", 4.711}, {"learning_rate", 1e-5}, {"grad_norm", 2.0}, {"step", 3}};
  EXPECT_EQ(python_text(row), "{'loss': 4.711, 'learning_rate': 1e-05, 'grad_norm': 2.0, 'step': 3}");
}

TEST(TrainerState, APrintedRowHasAReadersDigits) {
  const nlohmann::ordered_json row = {{"grad_norm", 14.974675538063895},
                                      {"learning_rate", 2.4999999e-05},
                                      {"total_flos", 123456789.0},
                                      {"tokens", 99999.96},
                                      {"loss", 0.1},
                                      {"large", 1.23456789e18},
                                      {"nan", std::nan("")}};
  EXPECT_EQ(python_text(row),
            "{'grad_norm': 14.975, 'learning_rate': 2.5e-05, 'total_flos': 123456789.0, 'tokens': 100000.0, 'loss': "
            "0.1, 'large': 1.2346e+18, 'nan': nan}");
}

}  // namespace
}  // namespace tessera::train
