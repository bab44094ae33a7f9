#include "fsdp/runtime/runtime.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

/// Beside units that lie on a disk gradients take what activations have left, or, where forward needs that for the
/// units that it keeps, memory of their own.
SumMemory sum_memory(const FsdpOptions& options) {
  if (options.offload_folder.empty()) return SumMemory::kOfSteps;
  return reshards_after_forward(options.strategy) ? SumMemory::kFreeOfSteps : SumMemory::kOwn;
}

}  // namespace

Runtime::Runtime(Mesh mesh, FsdpOptions options)
    : mesh_(std::move(mesh)),
      options_(std::move(options)),
      reducer_(mesh_, stats_, sum_memory(options_), copies_to_device() ? options_.device : at::Device(at::kCPU)),
      page_reader_(mesh_.world->rank(), mesh_.world->size()) {
  if (copies_to_device()) uploader_ = std::make_unique<tensor::Uploader>(options_.device);
  if (!options_.offload_folder.empty()) offload_ = std::make_shared<tensor::DiskStore>(options_.offload_folder);
}

void Runtime::enter_forward() {
  if (forward_depth_ == 0 && torch::autograd::get_current_graph_task_id() == -1) {
    if (in_backward_) recover_from_failed_backward();
    publish();
    read_since_fence_ = true;
    order_.begin_forward();
    if (order_.between_steps()) events_ = 0;
    for (auto& unit : units_) {
      unit->refresh();
      if (unit->ignored()) reducer_.expect(unit->index());
    }
  }
  ++forward_depth_;
}

void Runtime::leave_forward() {
  if (--forward_depth_ > 0 || in_backward_) return;
  // What was gathered ahead and never ran must not show old values later.
  if (options_.forward_prefetch)
    for (auto& unit : units_)
      if (unit->ahead()) unit->release();
  // A step may come without another backward.
  if (shared_memory_ && !steps_in_background() &&
      std::any_of(units_.begin(), units_.end(), [](const auto& u) { return u->store().steps_in_place(); }))
    end_reading();
}

void Runtime::begin_unit_forward(const Unit& unit) {
  announce(in_backward_ ? "recomputation of" : "forward of", unit);
  if (!in_backward_) order_.visit(unit.index());
}

void Runtime::prefetch_after(const Unit& unit) {
  if (!options_.forward_prefetch || in_backward_) return;
  const auto next = static_cast<std::size_t>(unit.index()) + 1;
  if (order_.known())
    prefetch(order_.after(unit.index()));
  else if (offload_ && next < units_.size())
    units_[next]->fetch();  // in the first forward the order of registration is the best guess
}

void Runtime::prefetch(std::optional<int> unit) {
  if (!unit || !gathers_progress()) return;
  if (background_step_ && !background_step_->has_updated(*units_[static_cast<std::size_t>(*unit)])) return;
  const auto in_flight = std::count_if(units_.begin(), units_.end(), [](const auto& u) { return u->gathering(); });
  if (in_flight < options_.max_gathers_in_flight) units_[static_cast<std::size_t>(*unit)]->prefetch();
}

void Runtime::note_activity(const std::string& what) {
  activity_ = what;
  mesh_.world->note_activity(what);
}

void Runtime::announce(const char* what, const Unit& unit) {
  const auto event = std::string(what) + (unit.name().empty() ? " the root unit" : " unit '" + unit.name() + "'");
  note_activity(event);
  ++events_;
  if (!options_.check_order) return;
  const auto all = mesh_.world->all_gather_objects(event);
  if (std::equal(all.begin() + 1, all.end(), all.begin())) return;
  std::map<std::string, std::string> ranks;  // by event
  for (std::size_t r = 0; r < all.size(); ++r) ranks[all[r]] += (ranks[all[r]].empty() ? "" : ", ") + std::to_string(r);
  std::string message = "ranks run different units (event " + std::to_string(events_) + " of this step):";
  for (const auto& [done, who] : ranks) message += " rank " + who + ": " + done + ";";
  throw Error(message + " is there a condition on the data in the model's forward?");
}

std::int64_t Runtime::record_forward(int unit) {
  return in_backward_ ? -1 : order_.end_visit(unit);
}

// A kernel that threw in the middle of a backward leaves no one to call end_backward(), and what would have called it
// is gone.
void Runtime::recover_from_failed_backward() {
  in_backward_ = false;
  order_.end_backward();
  reducer_.abandon();
  for (auto& unit : units_) unit->end_backward();
}

void Runtime::begin_backward() {
  if (in_backward_ && !backward_.expired()) return;
  finish_step();  // gradients come again
  if (in_backward_) recover_from_failed_backward();
  in_backward_ = true;
  const auto running = std::make_shared<bool>(true);
  backward_ = running;
  std::weak_ptr<Runtime> self = weak_from_this();
  torch::autograd::Engine::get_default_engine().queue_callback([self, running] {
    if (auto runtime = self.lock()) runtime->end_backward();
  });
  // Of forwards before another backward, which forgot what was expected.
  for (const auto& unit : units_) unit->begin_backward();
}

void Runtime::prefetch_before(std::int64_t position) {
  prefetch(order_.before(position));
}

void Runtime::end_backward() {
  note_activity("the end of a backward");
  for (const auto& unit : units_) unit->check_files();
  reducer_.backward_finished();
  for (auto& unit : units_) unit->end_backward();
  order_.end_backward();
  in_backward_ = false;
  if (!shared_memory_ && reducer_.sync()) check_same_gathers();
  if (shared_memory_ && reducer_.sync())
    end_reading();
  else
    wait_for_copies();
  note_activity("between backward and the next forward");
}

// Optimizers may write what copies to the device read, and the stream that computes waits for.
void Runtime::wait_for_copies() {
  if (!uploader_) return;
  const c10::impl::VirtualGuardImpl device(options_.device.type());
  device.synchronizeStream(device.getStream(options_.device));
}

void Runtime::end_reading() {
  wait_for_copies();
  mesh_.shard->barrier();
  read_since_fence_ = false;
}

void Runtime::publish() {
  if (steps_in_background()) return;  // each unit is shown when it is updated
  bool needed = false;
  for (const auto& unit : units_) unit->store().settle();
  for (const auto& unit : units_) needed = needed || unit->store().needs_publish();
  if (!needed) return;
  if (read_since_fence_) end_reading();
  for (auto& unit : units_) unit->publish();
  mesh_.shard->barrier();
  read_since_fence_ = false;
}

// Where a unit is gathered by reading the host's memory, on which the processor works meanwhile. Whole units that are
// never released would be waited for at the beginning of a forward.
void Runtime::prepare_steps() {
  if (!copies_to_device() || !shared_memory_ || always_whole() || offload_) return;
  const bool shares = mesh_.shard->size() > 1;
  background_step_ = std::make_unique<BackgroundStep>(units_, shares ? mesh_.shard->split(0) : nullptr);
}

// Blocks of equal size give all-gathers that match in every respect but the values: a rank that ran another block than
// its peers would compute with wrong weights and nobody would notice.
void Runtime::check_same_gathers() {
  comm::Bytes mine(sizeof gather_hash_, '\0');
  std::memcpy(mine.data(), &gather_hash_, sizeof gather_hash_);
  const auto all = mesh_.shard->all_gather_objects(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw Error(
          "ranks 0 and " + std::to_string(rank) +
          " gathered different units, or in a different order, in this step. With gather form 'copy' all ranks must "
          "run the same modules in the same order; use form 'shared' where ranks may differ. With debug: true the "
          "units are named");
}

void Runtime::count_gather(const Unit& unit) {
  ++stats_.gathers;
  gather_hash_ = (gather_hash_ ^ static_cast<std::uint64_t>(unit.index() + 1)) * 0x100000001b3u;
  for (const auto& s : unit.segments()) {
    stats_.gathered_numel += s.numel;
    stats_.gathered_bytes += s.numel * static_cast<std::int64_t>(c10::elementSize(s.compute));
  }
}

}  // namespace tessera::fsdp
