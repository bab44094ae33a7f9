#include "train/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <ostream>

#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/restore.h"
#include "checkpoint/training_state.h"
#include "tessera/base/error.h"
#include "train/shown_average.h"

namespace tessera::train {

RunCheckpoints::RunCheckpoints(const CheckpointOptions& options, CheckpointContent content, const Training& training,
                               const TrainerOptions& steps, std::int64_t per_device_batch, std::ostream& out)
    : options_(options),
      content_(std::move(content)),
      trainer_(training.trainer),
      model_(training.model),
      optimizer_(training.optimizer),
      out_(out),
      saver_(
          model_.group(), options.output_dir, options.save_total_limit,
          options.save_in_background ? checkpoint::SaveQueue::Mode::kBackground : checkpoint::SaveQueue::Mode::kNow) {
  saver_.on_saved(content_.saved);
  state_.max_steps = trainer_.total_steps();
  state_.num_train_epochs = trainer_.epochs();
  state_.save_steps = CheckpointOptions::every(options_.save_steps, state_.max_steps);
  state_.train_batch_size = per_device_batch;
  state_.rows_per_step = per_device_batch * model_.group().size() * steps.gradient_accumulation_steps;
  state_.steps_per_epoch = trainer_.steps_per_epoch();
}

std::string RunCheckpoints::load() {
  const auto restore = [this](const std::string& from) {
    return checkpoint::restore_checkpoint(model_, &optimizer_, from);
  };
  std::string folder = options_.resume_from_checkpoint;
  if (folder == "auto" && checkpoint::list_checkpoints(options_.output_dir).empty()) return "";
  if (options_.takes_newest()) {
    std::vector<std::string> skipped;
    const auto last = checkpoint::last_checkpoint(options_.output_dir, restore, skipped);
    for (const auto& line : skipped) out_ << "  " << line << "\n" << std::flush;
    if (!last) fail_without_checkpoint(options_);
    return last->path;
  }
  if (checkpoint::has_torch_state(folder) &&
      !checkpoint::has_training_state(checkpoint::training_state_folder(folder))) {
    out_ << "  '" << folder << "' is of Accelerate: weights and optimizer go on, random numbers begin anew\n";
    checkpoint::load_torch_state(model_, &optimizer_,
                                 {.model = content_.model_name_in_torch, .optimizer = content_.optimizer_name_in_torch},
                                 folder);
    return folder;
  }
  const std::string obstacle = restore(folder);
  if (!obstacle.empty()) fail_to_resume(options_, obstacle);
  return folder;
}

std::int64_t RunCheckpoints::steps_done(const TrainerState& read) const {
  if (read.rows_per_step == 0 || read.rows_per_step == state_.rows_per_step) return read.global_step;
  const std::int64_t epochs = read.global_step / read.steps_per_epoch;
  const std::int64_t rows = read.global_step % read.steps_per_epoch * read.rows_per_step;
  const std::int64_t steps = epochs * state_.steps_per_epoch + rows / state_.rows_per_step;
  out_ << fmt::format(
      "  The checkpoint was written with {} rows a step, this run has {}: its step {} is step {} here. For the same "
      "steps choose batch size and accumulation so that their product with the number of ranks stays.\n",
      read.rows_per_step, state_.rows_per_step, read.global_step, steps);
  return steps;
}

namespace {

/// Of `steps` steps here as large a part as of the checkpoint's: what the schedule does not count.
std::int64_t skipped_of(std::int64_t steps, const TrainerState& read) {
  if (read.global_step == 0) return 0;
  return std::clamp<std::int64_t>(read.skipped_steps * steps / read.global_step, 0, steps);
}

/// The best checkpoint beside `folder`, where it is if both were moved or copied since; else where it was.
std::string best_beside(const std::string& folder, const std::string& best) {
  namespace fs = std::filesystem;
  if (best.empty()) return best;
  const fs::path beside = (fs::path(folder) / "..").lexically_normal() / fs::path(best).filename();
  return fs::is_directory(beside) ? beside.string() : best;
}

}  // namespace

void RunCheckpoints::resume() {
  if (!options_.is_resumed()) return;
  const std::string folder = load();
  if (folder.empty()) {
    out_ << fmt::format("  No checkpoint in '{}' yet: beginning anew\n", options_.output_dir) << std::flush;
    return;
  }
  const TrainerState read = TrainerState::read(folder + "/trainer_state.json");
  state_.global_step = steps_done(read);
  state_.epoch = read.epoch;
  state_.best_metric = read.best_metric;
  state_.best_global_step = read.best_global_step;
  state_.best_model_checkpoint = model_.group().broadcast_object(best_beside(folder, read.best_model_checkpoint),
                                                                 0);  // for all, whatever they see
  state_.total_flos = read.total_flos;
  state_.num_input_tokens_seen = read.num_input_tokens_seen;
  state_.log_history = read.log_history;
  state_.evaluations_without_improvement = read.evaluations_without_improvement;
  state_.evaluation_due = read.evaluation_due;
  state_.loss = read.loss;
  state_.window = read.window;
  state_.recent_losses = read.recent_losses;
  trainer_.schedule().load_state(read.schedule);
  if (trainer_.scaler() && read.loss_scale > 0) trainer_.scaler()->load(read.loss_scale, read.steps_at_loss_scale);
  resumed_at_ = saved_at_ = state_.global_step;
  step_of_checkpoint_ = read.global_step;
  resumed_from_ = folder;
  state_.skipped_steps = skipped_of(state_.global_step, read);
  trainer_.start_at(state_.global_step, state_.skipped_steps, read.epoch_loss);
  if (!read.has_meters) {
    out_ << "  The checkpoint keeps no running averages (an older version or another program wrote it): those of its "
            "epoch and of the next log row begin here\n";
  }
  out_ << fmt::format("  Continuing training from checkpoint '{}'\n  Continuing from global step {}\n", folder,
                      state_.global_step)
       << std::flush;
}

// Where one checkpoint was copied without the others. Better now than by an error behind the last step.
void RunCheckpoints::forget_lost_best() {
  const std::string& lost = state_.best_model_checkpoint;
  if (lost.empty()) return;
  const bool misses = !std::filesystem::is_directory(lost);
  if (sum_over_ranks(model_.group(), misses ? 1.0 : 0.0) == 0) return;
  out_ << fmt::format("  The best checkpoint so far, '{}', is not there: the run ends with the best from here on\n",
                      lost)
       << std::flush;
  state_.best_metric.reset();
  state_.best_global_step = 0;
  state_.best_model_checkpoint.clear();
}

bool RunCheckpoints::due(bool at_epoch_end) const {
  if (options_.save_strategy == Interval::kEpoch) return at_epoch_end;
  if (options_.save_strategy != Interval::kSteps || at_epoch_end) return false;
  return state_.global_step % state_.save_steps == 0 || state_.global_step == state_.max_steps;
}

void RunCheckpoints::save(const std::string& keep) {
  if (saved_at_ == state_.global_step) return;
  saved_at_ = state_.global_step;
  const auto held = model_.memory().shard_bytes;
  if (const std::string bad = first_non_finite_weight(model_, Weights::kTrained); !bad.empty()) {
    throw Error(
        fmt::format("step {}: there is {}, so no checkpoint of this step is written; older ones are untouched. Go on "
                    "from one with --resume_from_checkpoint and a lower --learning_rate",
                    state_.global_step, bad));
  }
  state_.schedule = trainer_.schedule().state();
  state_.epoch_loss = trainer_.epoch_loss();
  if (const auto* scaler = trainer_.scaler()) {
    state_.loss_scale = scaler->scale();
    state_.steps_at_loss_scale = scaler->growth_tracker();
  }
  state_.skipped_steps = trainer_.skipped();
  const auto any = std::numeric_limits<std::int64_t>::max();
  const auto room = is_last_step_ ? 0 : content_.room_for_copies ? content_.room_for_copies() : any;
  const std::string folder = saver_.begin(state_.global_step, keep, room);
  checkpoint::SaveQueue& queue = saver_.queue();
  if (!options_.save_only_model) {
    checkpoint::push_training_state(model_, optimizer_, checkpoint::training_state_folder(folder), queue);
  }
  if (options_.save_accelerate_state) push_torch_state(folder);
  save_model(folder);
  if (model_.group().rank() == 0) {
    queue.push([folder, text = state_.to_json()] { write_file_atomically(folder + "/trainer_state.json", text); });
  }
  // Masters that were in halves are whole for as long as they are read.
  const auto copied = queue.copied_bytes() + model_.memory().shard_bytes - held;
  saver_.end();
  if (!queue.in_background()) return;
  if (is_last_step_ || copied > room)  // what follows the last step may change the weights
    saver_.before_update();
  else
    copied_bytes_ = std::max(copied_bytes_, copied);
}

// The training state has what is trained, the model's files have the result; both lie in the same memory.
void RunCheckpoints::save_model(const std::string& folder) {
  checkpoint::SaveQueue& queue = saver_.queue();
  if (!optimizer_.averages()) return content_.save_model(folder, queue);
  queue.forget_snapshots();
  const ShownAverage result(optimizer_, model_);
  content_.save_model(folder, queue);
  queue.forget_snapshots();
}

void RunCheckpoints::push_torch_state(const std::string& folder) {
  checkpoint::SaveQueue& queue = saver_.queue();
  checkpoint::push_torch_model(model_, folder, content_.torch_state, content_.model_name_in_torch, queue,
                               content_.tied_in_torch);
  checkpoint::TorchOptimizerOptions options = content_.torch_optimizer;
  options.lr = optimizer_.lr();
  checkpoint::push_torch_optimizer(model_, optimizer_, options, folder, content_.torch_state,
                                   content_.optimizer_name_in_torch, queue);
}

void RunCheckpoints::poll(const StepReport& step) {
  is_last_step_ = step.interrupted || step.step == trainer_.total_steps();
  saver_.poll();
  if (step.interrupted) saver_.check_files();
}

void RunCheckpoints::finish() {
  saver_.finish();
  saver_.check_files();
  // Of a run that was killed: a save takes them away, and this run may have had nothing to save.
  if (model_.group().rank() == 0) checkpoint::remove_partial_folders(options_.output_dir);
}

TrainerCallbacks RunCheckpoints::callbacks() {
  return {.on_step = nullptr,
          .on_epoch_end = nullptr,
          .should_stop = nullptr,
          .before_update = [this] { saver_.before_update(); },
          // A step in which rank 0 misses the output folder or one of its files ends the run as a signal does: on all
          // ranks.
          .interruption = [this] { return Interruption::requested() || saver_.has_lost_files(); }};
}

}  // namespace tessera::train
