#pragma once
// What transformers' example scripts leave beside a result: train_results.json, eval_results.json, and both together in
// all_results.json, written and printed as Trainer.save_metrics() and Trainer.log_metrics() do it.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "train/presentation.h"
#include "train/trainer_state.h"

namespace tessera::train {

inline nlohmann::ordered_json named_values(const Metrics& metrics) {
  nlohmann::ordered_json row;
  for (const auto& [name, value] : metrics) row[name] = value;
  return row;
}

/// epoch, train_loss, train_runtime, train_samples and what of the Trainer's keys else the run's last log row has;
/// total_flos where they were counted.
nlohmann::json train_results(const TrainerState& state, std::int64_t samples);

/// eval_samples beside the row of the newest evaluation, or of the newest one at that step; null: there was none.
nlohmann::json eval_results(const TrainerState& state, std::int64_t samples, std::int64_t step = -1);

/// Of rank 0. folder/<split>_results.json, and its keys over those that folder/all_results.json has; one that is no
/// JSON object is replaced.
void save_metrics(const std::string& folder, const std::string& split, const nlohmann::json& metrics);

/// ***** train metrics ***** and a line for each key.
std::string metrics_block(const std::string& split, const nlohmann::json& metrics);

}  // namespace tessera::train
