#pragma once
// The checkpoints of one run: when they are written, what they hold, and going on from one.
#include <functional>
#include <iosfwd>
#include <string>

#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/torch_state.h"
#include "train/checkpoint_options.h"
#include "train/interruption.h"
#include "train/trainer.h"
#include "train/trainer_state.h"

namespace tessera::train {

/// What a task adds.
struct CheckpointContent {
  /// Collective: the model or adapter and what belongs to it, into a folder that exists. All writing goes through the
  /// queue.
  std::function<void(const std::string& folder, checkpoint::SaveQueue& queue)> save_model;
  /// The bytes that this rank may copy for a save in the background that training goes on beside. Empty: any.
  std::function<std::int64_t()> room_for_copies = nullptr;
  /// Of rank 0, with the folder of each checkpoint that has got its name. May be empty; throws nothing.
  std::function<void(const std::string& folder)> saved = nullptr;
  /// Of --save_accelerate_state, and for going on from checkpoints of Accelerate. (The rate is the optimizer's.)
  checkpoint::TorchStateType torch_state = checkpoint::TorchStateType::kFull;
  std::vector<checkpoint::TiedName> tied_in_torch = {};
  checkpoint::TorchName model_name_in_torch = nullptr, optimizer_name_in_torch = nullptr;
  checkpoint::TorchOptimizerOptions torch_optimizer = {};
};

/// What a run trains with; all of it outlives the run.
struct Training {
  Trainer& trainer;
  fsdp::FullyShardedDataParallel& model;
  optim::Optimizer& optimizer;
};

class RunCheckpoints {
 public:
  /// Collective; rank 0 locks the output folder for as long as this lives: before any other file of the run is opened.
  /// CheckpointError on every rank when another run holds it. rows_per_batch: of all ranks, in one batch. out: rank 0's
  /// standard output.
  RunCheckpoints(const CheckpointOptions& options, CheckpointContent content, const Training& training,
                 const TrainerOptions& steps, std::int64_t per_device_batch, std::ostream& out);

  /// What goes into the next checkpoint, and came from the one that the run goes on from.
  TrainerState& state() { return state_; }

  /// Collective. Nothing unless options ask for it: then parameters, optimizer, random numbers, schedule, position.
  void resume();
  /// Of a run that resumed and is to load its best checkpoint at the end: not one that is not there. Collective.
  void forget_lost_best();
  /// The step that the run went on from; 0: it began anew.
  std::int64_t resumed_at() const { return resumed_at_; }
  /// The same step as the checkpoint numbers it: another number where it was written with other rows a step.
  std::int64_t step_of_checkpoint() const { return step_of_checkpoint_; }
  const std::string& resumed_from() const { return resumed_from_; }

  /// Of rank 0: another file of the run that has to keep its name.
  void watch(HeldName file) { saver_.watch(std::move(file)); }
  bool due(bool at_epoch_end) const;
  /// In this run.
  bool has_saved() const { return saved_at_ > resumed_at_; }
  /// The most bytes of copies that this rank has held for one save beside the next steps.
  std::int64_t copied_bytes() const { return copied_bytes_; }
  /// Collective. keep: a checkpoint that save_total_limit leaves.
  void save(const std::string& keep = "");
  /// Collective, after each step before anything else is written: gives names to what is written. CheckpointError on
  /// every rank when the output folder or a watched file was taken away.
  void poll(const StepReport& step);
  /// Collective. The same, and waits for all of it.
  void finish();

  /// Those of a Trainer that this answers.
  TrainerCallbacks callbacks();

 private:
  /// Parameters, optimizer and random numbers; returns the folder that they came from; "": there is none, and none
  /// is needed.
  std::string load();
  std::int64_t steps_done(const TrainerState& read) const;
  void save_model(const std::string& folder);
  void push_torch_state(const std::string& folder);

  const CheckpointOptions& options_;
  Interruption interruption_;  // from here on there is something to lose, up to the last file of the run
  CheckpointContent content_;
  Trainer& trainer_;
  fsdp::FullyShardedDataParallel& model_;
  optim::Optimizer& optimizer_;
  std::ostream& out_;
  checkpoint::CheckpointSaver saver_;
  TrainerState state_;
  std::int64_t resumed_at_ = 0, step_of_checkpoint_ = 0, saved_at_ = -1, copied_bytes_ = 0;
  bool is_last_step_ = false;  // nothing is trained behind it
  std::string resumed_from_;
};

}  // namespace tessera::train
