#pragma once
// What the units of one model share: the mesh, the reducer, the order of forwards (for prefetch), the end of backward,
// counts. Nothing here depends on which thread calls: several models may live in one process, one for each thread-rank.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unit_order.h"
#include "fsdp/grads/gradient_reducer.h"
#include "fsdp/plan/mesh.h"
#include "fsdp/runtime/background_step.h"
#include "fsdp/runtime/unit.h"
#include "tensor/offload_store.h"
#include "tensor/page_reader.h"
#include "tensor/uploader.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

class Runtime final : public std::enable_shared_from_this<Runtime> {
 public:
  Runtime(Mesh mesh, FsdpOptions options);

  void enter_forward();
  void leave_forward();
  /// A unit is about to be gathered and to compute; and, once it is gathered: starts the gather of the one that came
  /// next in the last forward.
  void begin_unit_forward(const Unit& unit);
  void prefetch_after(const Unit& unit);
  /// The position of this forward, which has ended, in the recorded order; -1 inside a backward (recomputation).
  std::int64_t record_forward(int unit);

  /// Called by whatever runs first in a backward: arranges for its end.
  void begin_backward();
  /// Starts the gather of the unit whose forward ended before the one at `position`.
  void prefetch_before(std::int64_t position);
  /// Says what this rank does from now on, and with check_order compares it with what the others do. Then collective;
  /// Error where they part.
  void announce(const char* what, const Unit& unit);

  /// Masters that were written since: into shared memory, and a fence. Collective when a rank has written.
  void publish();
  /// Collective. Once all units are there: steps go on while the next forward computes, where that helps.
  void prepare_steps();
  /// Null: they don't.
  BackgroundStep* background_step() { return background_step_.get(); }
  bool steps_in_background() const { return background_step_ && background_step_->running(); }
  void finish_step() {
    if (background_step_) background_step_->finish();
  }

  void count_gather(const Unit& unit);
  /// What this rank does, as it was noted last.
  const std::string& activity() const { return activity_; }

  bool in_backward() const { return in_backward_; }
  bool always_whole() const { return options_.strategy == ShardingStrategy::kNoShard; }
  const FsdpOptions& options() const { return options_; }
  const Mesh& mesh() const { return mesh_; }
  GradientReducer& reducer() { return reducer_; }
  const GradientReducer& reducer() const { return reducer_; }
  GatherMeter& meter() { return meter_; }
  const GatherMeter& meter() const { return meter_; }
  /// Of gathered units on the device that computes.
  GatherMeter& device_meter() { return device_meter_; }
  bool on_device() const { return !options_.device.is_cpu(); }
  /// A device computes with copies of what lies in the host's memory, which the uploader brings.
  bool copies_to_device() const { return on_device() && !resident(); }
  tensor::Uploader& uploader() { return *uploader_; }
  bool syncs_beside_computation() const { return copies_to_device() && shared_memory_ && !mesh_.replicate; }
  /// Slices, gradients and all else that lasts lie there, too.
  bool resident() const { return is_resident(options_); }
  const CommStats& stats() const { return stats_; }
  std::vector<std::shared_ptr<Unit>>& units() { return units_; }
  const std::vector<std::shared_ptr<Unit>>& units() const { return units_; }
  /// Null: nothing is offloaded.
  const std::shared_ptr<tensor::DiskStore>& offload() const { return offload_; }
  /// Of frozen parameters that are mapped from weight files, where state is offloaded.
  tensor::PageReader& page_reader() { return page_reader_; }
  /// The units' gathers move nothing on this rank.
  void set_shared_memory(bool shared) { shared_memory_ = shared; }

 private:
  void end_backward();
  /// Collective. Nobody on this host reads parameters any more: they may be written.
  void end_reading();
  void wait_for_copies();
  void recover_from_failed_backward();
  void check_same_gathers();
  void note_activity(const std::string& what);
  void prefetch(std::optional<int> unit);
  /// Something moves while this rank computes: copies from peers or to a device, or pages from a disk.
  bool gathers_progress() const { return offload_ || uploader_ || (!shared_memory_ && mesh_.shard->size() > 1); }

  Mesh mesh_;
  FsdpOptions options_;
  CommStats stats_;
  GatherMeter meter_, device_meter_;
  GradientReducer reducer_;
  std::unique_ptr<tensor::Uploader> uploader_;  // null: nothing is copied
  std::vector<std::shared_ptr<Unit>> units_;
  std::unique_ptr<BackgroundStep> background_step_;
  std::shared_ptr<tensor::DiskStore> offload_;
  tensor::PageReader page_reader_;
  GatherOrder order_;
  std::int64_t events_ = 0;        // announced in this step
  std::uint64_t gather_hash_ = 0;  // of the units gathered so far, in order
  int forward_depth_ = 0;
  std::string activity_ = "before the first forward";
  bool shared_memory_ = false;
  bool in_backward_ = false;
  std::weak_ptr<bool> backward_;   // held by autograd as long as it will call end_backward()
  bool read_since_fence_ = false;  // a forward ran after the last point at which no rank reads
};

}  // namespace tessera::fsdp
