#include "fsdp/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

constexpr int kSlots = 3;
constexpr std::size_t kLag = 1;  // a unit's reduction is waited for when the next unit has started its own
constexpr std::int64_t kPage = 4096;

std::int64_t round_to_page(std::int64_t n) {
  return (n + kPage - 1) / kPage * kPage;
}

}  // namespace

std::int64_t TrainableSegment::buffer_bytes() const {
  return layout.numel * static_cast<std::int64_t>(c10::elementSize(reduce));
}

struct GradientReducer::UnitState {
  int index = 0;
  std::vector<TrainableSegment> segments;
  std::vector<at::Tensor> buffers;         // while gradients are accumulated; views of the slot when in_slot
  std::vector<std::vector<bool>> written;  // by segment and entry
  bool in_slot = false, finished = false, expected = false;
  int order_index = -1, slot = -1, previous_user = -1;  // previous_user: order index, -1 none
  std::int64_t bytes() const {
    std::int64_t n = 0;
    for (const auto& s : segments) n += s.buffer_bytes();
    return n;
  }
};

struct GradientReducer::Flight {
  struct Part {
    std::unique_ptr<comm::Work> work;  // inside the shard group
    at::Tensor out, buffer, leaf;
    at::Tensor target;  // where the gradient ends when `out` is temporary: still to be summed over replicas
    bool accumulate = false;
  };
  std::vector<Part> parts;
};

GradientReducer::GradientReducer(Mesh mesh, CommStats& stats)
    : mesh_(std::move(mesh)), stats_(stats), divisor_(mesh_.world->size()) {}

GradientReducer::~GradientReducer() = default;

void GradientReducer::set_units(std::vector<std::vector<TrainableSegment>> units, bool shared_memory) {
  for (std::size_t i = 0; i < units.size(); ++i) {
    auto& u = units_.emplace_back();
    u.index = static_cast<int>(i);
    u.segments = std::move(units[i]);
    for (const auto& s : u.segments) u.written.emplace_back(s.layout.entries.size(), false);
  }
  for (auto u = units_.rbegin(); u != units_.rend(); ++u)
    if (!u->segments.empty()) order_.push_back(u->index);
  flights_.resize(order_.size());
  if (shared_memory) allocate_slots();
  assign_slots();
}

void GradientReducer::allocate_slots() {
  std::int64_t others = 0;
  for (const auto& u : units_) {
    if (u.index == 0)
      root_slot_bytes_ = round_to_page(u.bytes());
    else if (!u.segments.empty())
      slot_bytes_ = std::max(slot_bytes_, round_to_page(u.bytes())), ++others;
  }
  rank_bytes_ = root_slot_bytes_ + slot_bytes_ * std::min<std::int64_t>(others, kSlots);
  if (rank_bytes_ > 0) region_ = mesh_.shard->map_shared(rank_bytes_ * mesh_.shard->size());
}

// See Note [Slots].
void GradientReducer::assign_slots() {
  std::vector<int> rotating;  // order indices, the root left out
  for (std::size_t i = 0; i < order_.size(); ++i) {
    auto& u = units_[static_cast<std::size_t>(order_[i])];
    u.order_index = static_cast<int>(i);
    u.slot = u.previous_user = -1;
    if (u.index == 0) continue;
    const auto n = static_cast<int>(rotating.size());
    u.slot = n % kSlots;
    if (n >= kSlots) u.previous_user = rotating[static_cast<std::size_t>(n - kSlots)];
    rotating.push_back(u.order_index);
  }
}

void GradientReducer::expect(int unit) {
  units_[static_cast<std::size_t>(unit)].expected = true;
}

bool GradientReducer::may_use_slot(const UnitState& u) const {
  return region_ && sync_ && u.previous_user < static_cast<int>(next_);
}

at::Tensor GradientReducer::slot_view(const UnitState& u, std::size_t segment, int rank) const {
  auto offset = rank_bytes_ * rank + (u.slot < 0 ? 0 : root_slot_bytes_ + slot_bytes_ * u.slot);
  for (std::size_t i = 0; i < segment; ++i) offset += u.segments[i].buffer_bytes();
  const auto& s = u.segments[segment];
  return at::from_blob(region_->data() + offset, {s.layout.numel}, at::TensorOptions().dtype(s.reduce));
}

void GradientReducer::open_buffers(UnitState& u) {
  u.in_slot = may_use_slot(u);
  if (u.in_slot && u.previous_user >= 0) wait_input_free(static_cast<std::size_t>(u.previous_user));
  for (std::size_t i = 0; i < u.segments.size(); ++i) {
    const auto& s = u.segments[i];
    u.buffers.push_back(u.in_slot ? slot_view(u, i, mesh_.shard->rank()) : at::empty({s.layout.numel}, s.reduce));
    for (auto [begin, end] : gaps(s.layout)) u.buffers.back().narrow(0, begin, end - begin).zero_();
  }
}

void GradientReducer::accumulate(int unit, int segment, int entry, const at::Tensor& grad) {
  at::NoGradGuard no_grad;
  auto& u = units_[static_cast<std::size_t>(unit)];
  if (sync_ && u.order_index < static_cast<int>(next_))
    throw Error(
        "a gradient of unit " + std::to_string(unit) +
        " arrived after the unit was reduced. Run all backward passes through a module's outputs in one call of "
        "backward(), or set_requires_gradient_sync(false) for all but the last");
  if (u.buffers.empty()) open_buffers(u);
  const auto s = static_cast<std::size_t>(segment), e = static_cast<std::size_t>(entry);
  const auto& place = u.segments[s].layout.entries[e];
  auto view = u.buffers[s].narrow(0, place.offset, place.numel).view(grad.sizes());
  if (u.written[s][e])
    view.add_(grad);
  else
    view.copy_(grad);
  u.written[s][e] = true;
}

void GradientReducer::unit_finished(int unit) {
  auto& u = units_[static_cast<std::size_t>(unit)];
  if (!sync_ || u.segments.empty() || u.finished) return;
  u.finished = true;
  if (!order_agreed_) finished_order_.push_back(unit);
  start_ready();
}

// See Note [Order of reductions].
void GradientReducer::start_ready() {
  while (next_ < order_.size()) {
    auto& u = units_[static_cast<std::size_t>(order_[next_])];
    if (!u.finished && (u.expected || !u.buffers.empty())) return;
    start(u);
  }
}

void GradientReducer::fill_missing(UnitState& u) {
  for (std::size_t i = 0; i < u.segments.size(); ++i) {
    const auto& entries = u.segments[i].layout.entries;
    for (std::size_t e = 0; e < entries.size(); ++e) {
      if (!u.written[i][e]) u.buffers[i].narrow(0, entries[e].offset, entries[e].numel).zero_();
      u.written[i][e] = false;
    }
  }
}

void GradientReducer::move_to_slot(UnitState& u) {
  if (u.previous_user >= 0) wait_input_free(static_cast<std::size_t>(u.previous_user));
  for (std::size_t i = 0; i < u.segments.size(); ++i) {
    auto place = slot_view(u, i, mesh_.shard->rank());
    place.copy_(u.buffers[i]);
    u.buffers[i] = place;
  }
}

void GradientReducer::start(UnitState& u) {
  at::NoGradGuard no_grad;
  if (u.buffers.empty()) open_buffers(u);
  fill_missing(u);
  if (region_ && !u.in_slot) move_to_slot(u);
  auto& flight = flights_[next_];
  for (std::size_t i = 0; i < u.segments.size(); ++i) {
    auto& s = u.segments[i];
    auto& part = flight.parts.emplace_back();
    comm::ReduceOptions how{.scale = 1.0 / divisor_, .accumulate = false};
    part.leaf = s.leaf;
    part.accumulate = s.leaf.grad().defined();
    // Not kept between steps: activations need the memory while there are no gradients.
    part.out = part.accumulate ? s.leaf.grad() : at::empty({s.layout.slice_numel}, s.leaf.scalar_type());
    how.accumulate = part.accumulate;
    if (mesh_.replicate) {  // summed over replicas in the dtype of reductions, then added to what is there
      part.target = part.out;
      part.out = at::empty({s.layout.slice_numel}, s.reduce);
      how.accumulate = false;
    }
    if (region_) {
      std::vector<at::Tensor> inputs;
      for (int r = 0; r < mesh_.shard->size(); ++r)
        inputs.push_back(
            slot_view(u, i, r).narrow(0, s.layout.slice_numel * mesh_.shard->rank(), s.layout.slice_numel));
      part.work = mesh_.shard->reduce_shared(part.out, std::move(inputs), how);
    } else {
      part.buffer = u.buffers[i];
      part.work = mesh_.shard->reduce_scatter(part.out, u.buffers[i], how);
    }
    stats_.reduced_numel += s.layout.numel;
  }
  ++stats_.reductions;
  u.buffers.clear();
  u.finished = u.expected = u.in_slot = false;
  ++next_;
  if (next_ > kLag) complete_until(next_ - kLag);
}

void GradientReducer::complete_until(std::size_t count) {
  for (; completed_ < count; ++completed_) {
    for (auto& part : flights_[completed_].parts) {
      if (!region_)
        part.work->wait_input_free();
      else
        part.work->wait();
      part.buffer = at::Tensor();
      if (part.target.defined()) {
        mesh_.replicate->all_reduce(part.out, comm::ReduceOp::kSum)->wait();
        part.out = part.accumulate ? part.target.add_(part.out) : part.target.copy_(part.out);
      }
      part.leaf.mutable_grad() = part.out;
      part.out = part.target = at::Tensor();
    }
  }
}

void GradientReducer::wait_input_free(std::size_t order_index) {
  at::NoGradGuard no_grad;
  complete_until(order_index + 1);
  for (auto& part : flights_[order_index].parts) part.work->wait_input_free();
  flights_[order_index].parts.clear();
}

void GradientReducer::backward_finished() {
  if (!sync_) return;
  at::NoGradGuard no_grad;
  while (next_ < order_.size()) start(units_[static_cast<std::size_t>(order_[next_])]);
  for (std::size_t i = 0; i < order_.size(); ++i) wait_input_free(i);
  next_ = completed_ = 0;
  for (auto& u : units_) u.expected = u.finished = false;
  if (!order_agreed_) agree_on_order();
}

void GradientReducer::agree_on_order() {
  for (int unit : order_)
    if (std::find(finished_order_.begin(), finished_order_.end(), unit) == finished_order_.end())
      finished_order_.push_back(unit);
  comm::Bytes mine(finished_order_.size() * sizeof(int), '\0');
  std::memcpy(mine.data(), finished_order_.data(), mine.size());
  const auto agreed = mesh_.world->broadcast_object(mine, 0);
  TESSERA_CHECK(agreed.size() == mine.size(), "ranks disagree on the number of units");
  std::memcpy(order_.data(), agreed.data(), agreed.size());
  order_agreed_ = true;
  assign_slots();
}

void GradientReducer::abandon() noexcept {
  for (auto& flight : flights_) flight.parts.clear();
  next_ = completed_ = 0;
  finished_order_.clear();
  for (auto& u : units_) {
    u.buffers.clear();
    u.expected = u.finished = u.in_slot = false;
    for (auto& w : u.written) w.assign(w.size(), false);
  }
}

std::int64_t GradientReducer::buffer_bytes() const {
  auto bytes = rank_bytes_;
  for (const auto& u : units_)
    if (!u.in_slot)
      for (const auto& b : u.buffers) bytes += static_cast<std::int64_t>(b.nbytes());
  for (const auto& flight : flights_)
    for (const auto& part : flight.parts)
      if (part.buffer.defined()) bytes += static_cast<std::int64_t>(part.buffer.nbytes());
  return bytes;
}

std::int64_t GradientReducer::shard_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& u : units_)
    for (const auto& s : u.segments)
      if (s.leaf.grad().defined()) bytes += static_cast<std::int64_t>(s.leaf.grad().nbytes());
  return bytes;
}

}  // namespace tessera::fsdp
