#pragma once
// --report_to: where a run's rows go beside metrics.jsonl.
#include <string>
#include <vector>

namespace tessera::train {

struct ReportTo {
  bool tensorboard = false, html = false;
  std::string metrics_file;           // of jsonl:FILE; empty: not given
  std::vector<std::string> trackers;  // that are Python's: "wandb", "mlflow"
};

/// What --report_to takes beside jsonl:FILE.
std::vector<std::string> report_words();

/// ConfigError names a word that is none of those that --report_to takes.
ReportTo read_report_to(const std::vector<std::string>& words);

/// Where a run's TensorBoard files go: --logging_dir, or else where transformers puts them,
/// output_dir/runs/Nov21_09-30-00_host.
std::string tensorboard_folder(const std::string& logging_dir, const std::string& output_dir);

/// The command that hands a file of metrics to such a tracker.
std::string import_command(const std::string& tracker, const std::string& metrics_file);

}  // namespace tessera::train
