#pragma once
// Checkpoints under transformers' names, for every task that trains.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/model_files.h"
#include "config/options.h"

namespace tessera::train {

enum class Interval { kNo, kSteps, kEpoch, kBest };

/// "no", "steps", "epoch".
const std::vector<std::pair<std::string, Interval>>& intervals();

struct CheckpointOptions {
  std::string output_dir = "trainer_output";
  bool overwrite_output_dir = false;
  Interval save_strategy = Interval::kSteps;
  double save_steps = 500;            // below 1: a part of all steps
  std::int64_t save_total_limit = 0;  // 0: all are kept
  bool save_only_model = false;
  bool save_in_background = true;
  bool save_accelerate_state = false;
  checkpoint::WeightDtype save_dtype = checkpoint::WeightDtype::kAuto;
  std::string resume_from_checkpoint;  // a folder, "true": the newest of output_dir, "auto": that, if there is one
  bool is_resumed() const {
    return !resume_from_checkpoint.empty() && resume_from_checkpoint != "false" && resume_from_checkpoint != "False";
  }
  /// The newest checkpoint of output_dir; else the folder that is named.
  bool takes_newest() const {
    return resume_from_checkpoint == "true" || resume_from_checkpoint == "True" || resume_from_checkpoint == "auto";
  }

  /// Every `value` steps, a value below 1 meaning a part of `total_steps`; at least 1.
  static std::int64_t every(double value, std::int64_t total_steps);
};

/// Adds the flags, with these values as their defaults.
void add_checkpoint_options(config::OptionTable& table, CheckpointOptions& options, const char* group);
/// Of the flag --`key`, where a strategy goes by steps: a part of all steps, or a whole number of them.
void check_steps(Interval strategy, double steps, const std::string& key, config::Problems& problems);
/// Values out of range.
void check_checkpoint_options(const CheckpointOptions& options, config::Problems& problems);
/// --do_train false evaluates and writes metrics only: it needs evaluations, which evaluation_flag switches on, and no
/// run to go on with.
void check_evaluates_only(const CheckpointOptions& options, bool evaluates, const std::string& evaluation_flag,
                          config::Problems& problems);
/// CheckpointError: --resume_from_checkpoint true (or auto), and output_dir has no whole checkpoint.
[[noreturn]] void fail_without_checkpoint(const CheckpointOptions& options);
/// CheckpointError: what keeps the run from going on from the named folder, and which others there are.
[[noreturn]] void fail_to_resume(const CheckpointOptions& options, const std::string& obstacle);
/// Before anything is read: CheckpointError where there is nothing to go on from; where a result is already there,
/// or checkpoints of a run that did not end are (where no launcher may have started the ranks again), unless
/// overwriting was asked for or the run goes on; and where the folder cannot be written. Makes nothing: a run that
/// fails on its data or its model leaves no folder.
void prepare_output(const CheckpointOptions& options, bool trains, const std::string& result);

}  // namespace tessera::train
