#include "train/checkpoint_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/torch_state.h"
#include "tessera/base/error.h"
#include "train/whole_steps.h"

namespace tessera::train {

const std::vector<std::pair<std::string, Interval>>& intervals() {
  static const std::vector<std::pair<std::string, Interval>> all = {
      {"no", Interval::kNo}, {"steps", Interval::kSteps}, {"epoch", Interval::kEpoch}};
  return all;
}

std::int64_t CheckpointOptions::every(double value, std::int64_t total_steps) {
  if (value < 1) value = std::ceil(value * static_cast<double>(total_steps));
  return std::max<std::int64_t>(1, whole_steps(value));
}

void add_checkpoint_options(config::OptionTable& table, CheckpointOptions& o, const char* group) {
  auto choices = intervals();
  choices.emplace_back("best", Interval::kBest);
  table.add_enum(&o.save_strategy, choices, {"--save_strategy"}, "when to write a checkpoint", group);
  table.add(&o.save_steps, {"--save_steps"}, "steps between checkpoints; below 1: a part of all steps", group)
      .implies("--save_strategy", "steps");
  const std::vector<config::Need> saving = {{"--save_strategy", {"steps", "epoch", "best"}}};
  table.add(&o.save_total_limit, {"--save_total_limit"}, "checkpoints that are kept; 0: all", group).only_with(saving);
  table
      .add(&o.save_only_model, {"--save_only_model"}, "checkpoints that cannot be resumed from, but are smaller", group)
      .only_with(saving);
  table
      .add(&o.save_in_background, {"--save_in_background"},
           "write checkpoints while training goes on (on slow disks it takes a copy of what is trained, if there is "
           "room)",
           group)
      .only_with(saving);
  table
      .add(&o.save_accelerate_state, {"--save_accelerate_state"},
           "checkpoints also hold what Accelerate writes under FSDP (the kind that fsdp_state_dict_type names)", group)
      .only_with(saving);
  table.add_enum(&o.save_dtype, checkpoint::dtype_choices(), {"--save_dtype"},
                 "of the weights in results and checkpoints; auto: as they are trained, float32", group);
  table.add(&o.resume_from_checkpoint, {"--resume_from_checkpoint"},
            "a checkpoint folder, or true: the newest of output_dir, or auto: that where there is one, else begin anew",
            group);
}

void check_steps(Interval strategy, double steps, const std::string& key, config::Problems& problems) {
  if (strategy != Interval::kSteps) return;
  problems.require(steps > 0, "--" + key + " must be positive", key);
  problems.require(steps <= 1 || steps == std::floor(steps),
                   fmt::format("--{} above 1 counts steps and must be whole, found {}", key, steps), key);
}

void check_checkpoint_options(const CheckpointOptions& o, config::Problems& problems) {
  check_steps(o.save_strategy, o.save_steps, "save_steps", problems);
}

void check_evaluates_only(const CheckpointOptions& o, bool evaluates, const std::string& evaluation_flag,
                          config::Problems& problems) {
  problems.require(evaluates,
                   "--do_train false evaluates only, but " + evaluation_flag + " is false: nothing is left to do",
                   "do_train");
  problems.require(
      !o.is_resumed(),
      "--do_train false goes on with no run: give the checkpoint's folder as the model (or as the adapter, "
      "--adapter_name_or_path) instead of --resume_from_checkpoint",
      "resume_from_checkpoint");
}

void fail_without_checkpoint(const CheckpointOptions& o) {
  throw CheckpointError(
      "--resume_from_checkpoint " + o.resume_from_checkpoint + ": no complete checkpoint in '" + o.output_dir + "'",
      o.output_dir);
}

void fail_to_resume(const CheckpointOptions& o, const std::string& obstacle) {
  const auto& folder = o.resume_from_checkpoint;
  auto others = checkpoint::list_checkpoints(folder);  // where a run's folder was named
  if (others.empty()) others = checkpoint::list_checkpoints(o.output_dir);
  std::vector<std::string> names;
  for (const auto& other : others) names.push_back(other.path);
  throw CheckpointError(
      fmt::format("cannot go on from '{}': {}. Choose another checkpoint (there {}), or --resume_from_checkpoint true "
                  "for the newest whole one of --output_dir",
                  folder, obstacle,
                  names.empty() ? "is none in " + o.output_dir : fmt::format("is {}", fmt::join(names, ", "))),
      folder);
}

namespace {

/// What is wrong and is seen without a model.
void require_checkpoint(const CheckpointOptions& o) {
  if (!o.is_resumed() || o.resume_from_checkpoint == "auto") return;
  if (o.takes_newest()) {
    if (checkpoint::list_checkpoints(o.output_dir).empty()) fail_without_checkpoint(o);
    return;
  }
  const auto& folder = o.resume_from_checkpoint;
  if (checkpoint::has_torch_state(folder)) return;
  if (const auto obstacle = checkpoint::find_damage(folder, checkpoint::Depth::kSizes); !obstacle.empty())
    fail_to_resume(o, obstacle);
}

/// A launcher that may start the ranks again (tessera launch, torchrun): it says so to all of them alike.
bool may_be_restarted() {
  const char* restarts = std::getenv("TORCHELASTIC_MAX_RESTARTS");
  return restarts && std::atoi(restarts) > 0;
}

}  // namespace

void prepare_output(const CheckpointOptions& o, bool trains, const std::string& result) {
  require_checkpoint(o);
  const bool may_exist = o.overwrite_output_dir || o.is_resumed();
  if (!result.empty() && !may_exist && std::filesystem::exists(result)) {
    throw CheckpointError("'" + result + "' exists already. Give another --output_dir, --overwrite_output_dir to " +
                              "replace it, or --resume_from_checkpoint true to go on.",
                          result);
  }
  if (const auto left = checkpoint::list_checkpoints(o.output_dir);
      trains && !may_exist && !left.empty() && !may_be_restarted()) {
    throw CheckpointError("'" + left.back().path + "' is of an earlier run. --resume_from_checkpoint true " +
                              "goes on from the newest checkpoint; to begin anew give another --output_dir, remove " +
                              "the checkpoints, or keep them among those of this run with --overwrite_output_dir.",
                          left.back().path);
  }
  require_writable(o.output_dir);
}

}  // namespace tessera::train
