#pragma once
// What a run's folder says of the run: metrics.jsonl, trainer_state.json (also one that transformers' Trainer wrote),
// and run.json, which names its settings and what was planned.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::report {

/// Values by step. A value that was no number (JSON's null) is NaN.
using Series = std::map<std::int64_t, double>;
using NamedNumbers = std::vector<std::pair<std::string, double>>;

struct AnswerSample {
  std::string prompt, expected, generated;
};

struct RunRecord {
  std::string name;
  std::map<std::string, Series> series;   // by the names of log rows: "loss", "eval_loss", "tokens_per_second"
  std::map<std::string, double> summary;  // of the run's last row: "train_runtime"; empty while it runs
  NamedNumbers phase_seconds, planned_mib, measured_mib;
  NamedNumbers planned_device_mib, measured_device_mib;            // of a rank's GPU; empty: none
  std::map<std::int64_t, std::vector<AnswerSample>> samples;       // by step
  std::vector<std::pair<std::string, std::string>> configuration;  // "learning_rate" -> "0.0001"
  std::int64_t last_step = 0, max_steps = 0;                       // max_steps 0: not known
  double epoch = 0;
};

/// `name`: what the run is called. DataError when the folder holds none of the files, or one that is malformed; the
/// last line of metrics.jsonl may be half written.
RunRecord read_run(const std::string& folder, const std::string& name);

/// "loss" of "eval_loss" and "loss": what a name measures, on whatever split.
std::string measured_by(const std::string& series_name);

}  // namespace tessera::report
