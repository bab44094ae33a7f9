#pragma once
// The saves of one run, one at a time. In the background, a save is made while the next steps run: begin(), push what
// is to be written into queue(), end(); then poll() after each step. A checkpoint gets its name when every rank has
// written.
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/held_name.h"
#include "checkpoint/run_lock.h"
#include "checkpoint/save_queue.h"
#include "tessera/comm/communicator.h"

namespace tessera::checkpoint {

class CheckpointSaver {
 public:
  /// Collective; rank 0 locks the folder. limit: how many checkpoints are kept; 0: all. CheckpointError on every rank
  /// when the folder cannot be written or another run holds it.
  CheckpointSaver(comm::Communicator& group, std::string output_dir, std::int64_t limit, SaveQueue::Mode mode);

  /// Collective. Finishes the save before (one that still writes holds the training back: memory holds one copy).
  /// Returns the folder to write into; it exists. keep: a checkpoint that rotation leaves. room: the bytes that this
  /// rank may copy of what is written in the background. It copies where the optimizer would have waited longer for the
  /// save before than copies take; else what is written is read where it lies, and the optimizer's next update waits
  /// for that. What is gathered for a moment is copied as far as there is room, and written at once beyond.
  std::string begin(std::int64_t step, std::string keep, std::int64_t room = std::numeric_limits<std::int64_t>::max());
  SaveQueue& queue() { return queue_; }
  /// Collective. Without a background thread the save is finished here.
  void end();

  /// Returns when the optimizer may change what the save reads.
  void before_update();
  /// Collective. Gives a save that all ranks have written its name: also in the background, by rank 0.
  void poll();
  /// Collective. The same, and waits for it. CheckpointError on every rank when some rank could not write; what was
  /// written is removed then, older checkpoints are as they were.
  void finish();

  /// Called on rank 0 with the folder of each checkpoint that has got its name, before another save begins.
  void on_saved(std::function<void(const std::string& folder)> call) { saved_ = std::move(call); }
  /// Another file of the run that has to keep its name, on the rank that writes it.
  void watch(HeldName file) { watched_.push_back(std::move(file)); }
  /// Whether this rank sees that the output folder (rank 0, run_lock.h) or a watched file was taken away.
  bool has_lost_files() const;
  /// Collective: CheckpointError on every rank when rank 0 sees that.
  void check_files();

 private:
  void start_commit();
  void finish_commit();
  /// Collective: the next of what is left to do, all ranks' jobs being done.
  void advance();
  /// Removes what was written and throws, on every rank, when `step` threw there.
  template <class Step>
  void or_discard(const Step& step);

  comm::Communicator& group_;
  std::string output_dir_, keep_;
  std::int64_t limit_ = 0, step_ = 0;
  std::unique_ptr<RunLock> lock_;  // on rank 0
  std::vector<HeldName> watched_;
  std::function<void(const std::string&)> saved_;
  std::optional<std::chrono::steady_clock::time_point> update_due_;  // the first since begin()
  bool copies_pay_ = false;
  enum class Stage { kNothing, kWriting, kCommitting } stage_ = Stage::kNothing;
  SaveQueue queue_;
};

}  // namespace tessera::checkpoint
