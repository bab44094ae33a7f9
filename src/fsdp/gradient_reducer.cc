#include "fsdp/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tensor/mapped_zeros.h"
#include "tessera/base/error.h"
#include "tessera/tensor/allocator.h"

namespace tessera::fsdp {
namespace {

constexpr std::size_t kLag = 1;  // a bucket's reduction is waited for when the next one has started its own

/// Of contributions that may be as narrow as they were computed.
at::ScalarType narrow_dtype(const TrainableSegment& s) {
  return c10::elementSize(s.layout.compute) < c10::elementSize(s.reduce) ? s.layout.compute : s.reduce;
}

std::int64_t bytes_in(const TrainableSegment& s, at::ScalarType dtype) {
  return s.layout.numel * static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace

struct GradientReducer::Bucket {
  struct EntryState {
    bool written = false;
    std::weak_ptr<tensor::PreparedGradient> prepared;  // in the buffer and not committed yet
  };

  int unit = 0;
  bool alone = false;
  std::vector<TrainableSegment> segments;
  std::vector<at::Tensor> buffers;               // while gradients are accumulated; views of the slot when in_slot
  std::vector<std::vector<EntryState>> entries;  // by segment
  at::Tensor late;                               // of the only segment: what came after the reduction
  bool in_slot = false, finished = false, expected = false;
  int order_index = -1;
  std::size_t index = 0;

  int position() const { return segments.front().position; }
  /// What was prepared here and not committed goes elsewhere.
  void evict() {
    for (auto& segment : entries)
      for (auto& e : segment)
        if (const auto prepared = e.prepared.lock()) {
          prepared->memory = prepared->memory.clone();
          e.prepared.reset();
        }
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

GradientReducer::GradientReducer(Mesh mesh, CommStats& stats, bool sums_leave)
    : mesh_(std::move(mesh)), stats_(stats), divisor_(mesh_.world->size()), sums_leave_(sums_leave) {}

GradientReducer::~GradientReducer() = default;

void GradientReducer::set_units(std::vector<std::vector<TrainableSegment>> units, bool shared_memory) {
  make_buckets(std::move(units));
  order_.resize(buckets_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return buckets_[static_cast<std::size_t>(a)].position() > buckets_[static_cast<std::size_t>(b)].position();
  });
  flights_.resize(order_.size());
  if (shared_memory) allocate_slots();
  place_in_order();
}

// See Note [Buckets].
void GradientReducer::make_buckets(std::vector<std::vector<TrainableSegment>> units) {
  for (std::size_t u = 0; u < units.size(); ++u) {
    auto& places = places_.emplace_back();
    auto& mine = buckets_of_unit_.emplace_back();
    int together = -1;
    for (auto& segment : units[u]) {
      const bool alone = segment.layout.alone;
      if (alone || together < 0) {
        mine.push_back(static_cast<int>(buckets_.size()));
        if (!alone) together = mine.back();
        auto& b = buckets_.emplace_back();
        b.index = buckets_.size() - 1;
        b.unit = static_cast<int>(u);
        b.alone = alone;
      }
      const auto index = static_cast<std::size_t>(alone ? mine.back() : together);
      places.push_back({index, buckets_[index].segments.size()});
      buckets_[index].entries.emplace_back(segment.layout.entries.size());
      buckets_[index].segments.push_back(std::move(segment));
    }
  }
}

// See Notes [Slots] and [Dtype of contributions].
void GradientReducer::allocate_slots() {
  int first_unit = -1;
  for (const auto& b : buckets_)
    if (b.unit > 0 && b.position() >= 0 && (first_unit < 0 || b.position() < first_unit)) first_unit = b.position();
  const bool fits_nowhere_else = mesh_.shard->size() == 1 && !mesh_.replicate;  // a sum twice as large as its slot
  std::vector<SlotUser> users;
  for (const auto& b : buckets_) {
    auto& user = users.emplace_back();
    for (const auto& s : b.segments) {
      user.wide_bytes += bytes_in(s, s.reduce);
      user.narrow_bytes += bytes_in(s, narrow_dtype(s));
    }
    user.takes_turns = b.unit > 0 || b.alone;
    user.opens_early = b.unit == 0 && b.position() < first_unit;
    user.keeps_sum = !user.takes_turns || user.narrow_bytes == user.wide_bytes || fits_nowhere_else;
  }
  slots_ = GradientSlots(std::move(users));
  if (slots_.bytes() > 0) region_ = mesh_.shard->map_shared(slots_.bytes() * mesh_.shard->size());
}

void GradientReducer::place_in_order() {
  for (std::size_t i = 0; i < order_.size(); ++i)
    buckets_[static_cast<std::size_t>(order_[i])].order_index = static_cast<int>(i);
  if (region_) slots_.set_order(order_);
}

void GradientReducer::expect(int unit) {
  for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)])
    buckets_[static_cast<std::size_t>(b)].expected = true;
}

const GradientReducer::Place& GradientReducer::place_of(GradientId id) const {
  return places_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.segment)];
}

GradientReducer::Bucket& GradientReducer::bucket_of(GradientId id) {
  return buckets_[place_of(id).bucket];
}

/// 1-D, in the open buffer.
at::Tensor GradientReducer::view_of(GradientId id) {
  const auto& b = bucket_of(id);
  const auto s = place_of(id).segment;
  const auto& entry = b.segments[s].layout.entries[static_cast<std::size_t>(id.entry)];
  return b.buffers[s].narrow(0, entry.offset, entry.numel);
}

bool GradientReducer::reduced(const Bucket& b) const {
  return sync_ && b.order_index < static_cast<int>(next_);
}

bool GradientReducer::may_use_slot(const Bucket& b) const {
  return region_ && sync_ && slot_of(b).previous_user < static_cast<int>(next_);
}

const RingSlot& GradientReducer::slot_of(const Bucket& b) const {
  return slots_.at(b.index, width());
}

// See Note [Dtype of contributions].
at::ScalarType GradientReducer::contribution_dtype(const Bucket& b, std::size_t segment) const {
  const auto& s = b.segments[segment];
  return region_ && slots_.narrow(b.index, width()) ? narrow_dtype(s) : s.reduce;
}

at::Tensor GradientReducer::slot_view(const Bucket& b, std::size_t segment, int rank) const {
  auto offset = slots_.bytes() * rank + slot_of(b).offset;
  for (std::size_t i = 0; i < segment; ++i) offset += bytes_in(b.segments[i], contribution_dtype(b, i));
  return at::from_blob(region_->data() + offset, {b.segments[segment].layout.numel},
                       at::TensorOptions().dtype(contribution_dtype(b, segment)));
}

/// Where this rank's part of its own contribution lies: nobody else reads it.
at::Tensor GradientReducer::own_slice(const Bucket& b, std::size_t segment) const {
  const auto& s = b.segments[segment];
  auto* slot = static_cast<std::byte*>(slot_view(b, segment, mesh_.shard->rank()).mutable_data_ptr());
  const auto slice_bytes = bytes_in(s, s.reduce) / mesh_.shard->size();
  return at::from_blob(
      slot + slice_bytes * mesh_.shard->rank(), {s.layout.slice_numel}, [region = region_](void*) {},
      at::TensorOptions().dtype(s.reduce));
}

/// A slot that is nobody else's is idle from here to the next backward.
bool GradientReducer::sums_stay_in_slot(const Bucket& b, std::size_t segment) const {
  const auto& s = b.segments[segment];
  return region_ && slots_.keeps_sum(b.index) && !mesh_.replicate && s.reduce == s.leaf.scalar_type();
}

bool GradientReducer::holds_sum(const Bucket& b, std::size_t segment) const {
  const auto& grad = b.segments[segment].leaf.grad();
  return grad.defined() && sums_stay_in_slot(b, segment) &&
         grad.const_data_ptr() == own_slice(b, segment).const_data_ptr();
}

at::Tensor GradientReducer::empty_sum(const Bucket& b, std::size_t segment) const {
  if (sums_stay_in_slot(b, segment)) return own_slice(b, segment);
  const auto& s = b.segments[segment];
  if (sums_leave_) return tensor::mapped_zeros(s.layout.slice_numel, s.leaf.scalar_type());
  const tensor::FarEndScope scope;  // not kept between steps: activations need the memory while there are none
  return at::empty({s.layout.slice_numel}, s.leaf.scalar_type());
}

/// Sums that are still wanted move out before the slot is written.
void GradientReducer::vacate_slot(Bucket& b) {
  for (std::size_t i = 0; i < b.segments.size(); ++i)
    if (holds_sum(b, i)) b.segments[i].leaf.mutable_grad() = b.segments[i].leaf.grad().clone();
}

/// Until all have read what lay there.
void GradientReducer::take_turn(const Bucket& b) {
  if (width() == SlotWidth::kWide) wide_slots_used_ = true;
  if (const auto before = slot_of(b).previous_user; before >= 0) wait_input_free(static_cast<std::size_t>(before));
}

/// For a backward that does not communicate, and so may be followed by one of the other width.
void GradientReducer::leave_slots() {
  at::NoGradGuard no_grad;
  for (auto& b : buckets_) {
    if (!b.in_slot) continue;
    b.evict();
    for (std::size_t i = 0; i < b.segments.size(); ++i)
      b.buffers[i] = b.buffers[i].to(b.segments[i].reduce, /*non_blocking=*/false, /*copy=*/true);
    b.in_slot = false;
  }
}

void GradientReducer::open_buffers(Bucket& b) {
  b.in_slot = may_use_slot(b);
  if (b.in_slot) vacate_slot(b);
  if (b.in_slot) take_turn(b);
  for (std::size_t i = 0; i < b.segments.size(); ++i) {
    const auto& s = b.segments[i];
    b.buffers.push_back(b.in_slot ? slot_view(b, i, mesh_.shard->rank())
                                  : at::empty({s.layout.numel}, contribution_dtype(b, i)));
    for (auto [begin, end] : gaps(s.layout)) b.buffers.back().narrow(0, begin, end - begin).zero_();
  }
}

void GradientReducer::accumulate(GradientId id, const at::Tensor& grad) {
  at::NoGradGuard no_grad;
  auto& b = bucket_of(id);
  if (reduced(b)) {
    if (!b.alone)
      throw Error(
          "a gradient of unit " + std::to_string(id.unit) +
          " arrived after the unit was reduced. Run all backward passes through a module's outputs in one call of "
          "backward(), or set_requires_gradient_sync(false) for all but the last");
    const auto& s = b.segments.front();
    if (!b.late.defined()) b.late = at::zeros({s.layout.numel}, s.reduce);
    const auto& entry = s.layout.entries.front();
    b.late.narrow(0, entry.offset, entry.numel).view(grad.sizes()).add_(grad.to(at::kCPU));
    return;
  }
  if (b.buffers.empty()) open_buffers(b);
  auto& entry = b.entries[place_of(id).segment][static_cast<std::size_t>(id.entry)];
  if (!entry.prepared.expired()) b.evict();
  const auto view = view_of(id).view(grad.sizes());
  if (entry.written)
    view.add_(grad.to(at::kCPU));
  else
    view.copy_(grad);
  entry.written = true;
}

std::shared_ptr<tensor::PreparedGradient> GradientReducer::reserve(GradientId id) {
  at::NoGradGuard no_grad;
  auto& b = bucket_of(id);
  auto& entry = b.entries[place_of(id).segment][static_cast<std::size_t>(id.entry)];
  if (reduced(b) || !entry.prepared.expired()) return nullptr;
  if (b.buffers.empty()) open_buffers(b);
  auto prepared = std::make_shared<tensor::PreparedGradient>();
  prepared->memory = view_of(id);
  prepared->filled = entry.written;
  entry.prepared = prepared;
  return prepared;
}

void GradientReducer::commit(GradientId id, tensor::PreparedGradient& prepared) {
  auto& entry = bucket_of(id).entries[place_of(id).segment][static_cast<std::size_t>(id.entry)];
  if (entry.prepared.lock().get() != &prepared) return accumulate(id, prepared.memory);  // it was evicted
  entry.prepared.reset();
  entry.written = true;
}

void GradientReducer::parameter_finished(GradientId id) {
  auto& b = bucket_of(id);
  if (b.alone) finish(b);
}

void GradientReducer::unit_finished(int unit) {
  for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)]) finish(buckets_[static_cast<std::size_t>(b)]);
}

void GradientReducer::finish(Bucket& b) {
  if (!sync_ || b.finished || reduced(b)) return;
  b.finished = true;
  if (!order_agreed_) finished_order_.push_back(order_[static_cast<std::size_t>(b.order_index)]);
  start_ready();
}

// See Note [Order of reductions].
void GradientReducer::start_ready() {
  while (next_ < order_.size()) {
    auto& b = buckets_[static_cast<std::size_t>(order_[next_])];
    if (!b.finished && (b.expected || !b.buffers.empty())) return;
    start_next();
  }
}

void GradientReducer::start_next() {
  start(buckets_[static_cast<std::size_t>(order_[next_])], flights_[next_]);
  ++next_;
  if (next_ > kLag) complete_until(next_ - kLag);
}

void GradientReducer::fill_missing(Bucket& b) {
  for (std::size_t i = 0; i < b.segments.size(); ++i) {
    const auto& entries = b.segments[i].layout.entries;
    for (std::size_t e = 0; e < entries.size(); ++e) {
      auto& written = b.entries[i][e].written;
      if (!written) b.buffers[i].narrow(0, entries[e].offset, entries[e].numel).zero_();
      written = false;
    }
  }
}

void GradientReducer::move_to_slot(Bucket& b) {
  vacate_slot(b);
  take_turn(b);
  for (std::size_t i = 0; i < b.segments.size(); ++i) {
    auto place = slot_view(b, i, mesh_.shard->rank());
    place.copy_(b.buffers[i]);
    b.buffers[i] = place;
  }
}

void GradientReducer::start(Bucket& b, Flight& flight) {
  at::NoGradGuard no_grad;
  b.evict();
  if (b.buffers.empty()) open_buffers(b);
  fill_missing(b);
  if (region_ && !b.in_slot) move_to_slot(b);
  for (std::size_t i = 0; i < b.segments.size(); ++i) {
    auto& s = b.segments[i];
    auto& part = flight.parts.emplace_back();
    comm::ReduceOptions how{.scale = 1.0 / divisor_, .accumulate = false};
    part.leaf = s.leaf;
    part.accumulate = s.leaf.grad().defined();
    part.out = part.accumulate ? s.leaf.grad() : empty_sum(b, i);
    how.accumulate = part.accumulate;
    // Summed over replicas in the dtype of reductions, then added to what is there.
    if (mesh_.replicate && (part.accumulate || s.reduce != part.out.scalar_type())) {
      part.target = part.out;
      part.out = at::empty({s.layout.slice_numel}, s.reduce);
      how.accumulate = false;
    }
    if (region_) {
      std::vector<at::Tensor> inputs;
      for (int r = 0; r < mesh_.shard->size(); ++r)
        inputs.push_back(
            slot_view(b, i, r).narrow(0, s.layout.slice_numel * mesh_.shard->rank(), s.layout.slice_numel));
      part.work = mesh_.shard->reduce_shared(part.out, std::move(inputs), how);
    } else {
      part.buffer = b.buffers[i];
      part.work = mesh_.shard->reduce_scatter(part.out, b.buffers[i], how);
    }
    stats_.reduced_numel += s.layout.numel;
  }
  ++stats_.reductions;
  b.buffers.clear();
  b.finished = b.expected = b.in_slot = false;
}

void GradientReducer::complete_until(std::size_t count) {
  for (; completed_ < count; ++completed_) complete(flights_[completed_]);
}

void GradientReducer::complete(Flight& flight) {
  for (auto& part : flight.parts) {
    region_ ? part.work->wait() : part.work->wait_input_free();
    part.buffer = at::Tensor();
    if (mesh_.replicate) mesh_.replicate->all_reduce(part.out, comm::ReduceOp::kSum)->wait();
    if (part.target.defined()) part.out = part.accumulate ? part.target.add_(part.out) : part.target.copy_(part.out);
    part.leaf.mutable_grad() = part.out;
    part.out = part.target = at::Tensor();
  }
}

void GradientReducer::wait_input_free(std::size_t order_index) {
  at::NoGradGuard no_grad;
  complete_until(order_index + 1);
  for (auto& part : flights_[order_index].parts) part.work->wait_input_free();
  flights_[order_index].parts.clear();
}

void GradientReducer::backward_finished() {
  if (!sync_) {
    leave_slots();
    holds_unsynced_ = true;
    return;
  }
  at::NoGradGuard no_grad;
  while (next_ < order_.size()) start_next();
  for (std::size_t i = 0; i < order_.size(); ++i) wait_input_free(i);
  reduce_late();
  holds_unsynced_ = false;
  next_ = completed_ = 0;
  for (auto& b : buckets_) b.expected = b.finished = false;
  if (!order_agreed_) agree_on_order();
}

void GradientReducer::reduce_late() {
  std::vector<Bucket*> alone;
  for (const int index : order_)
    if (auto& b = buckets_[static_cast<std::size_t>(index)]; b.alone) alone.push_back(&b);
  if (alone.empty()) return;
  const auto count = at::zeros({static_cast<std::int64_t>(alone.size())}, at::kLong);
  auto* ranks_with = count.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < alone.size(); ++i) ranks_with[i] = alone[i]->late.defined() ? 1 : 0;
  mesh_.world->all_reduce(count, comm::ReduceOp::kSum)->wait();
  for (std::size_t i = 0; i < alone.size(); ++i) {
    if (ranks_with[i] == 0) continue;
    auto& b = *alone[i];
    Flight flight;
    if (const auto late = std::exchange(b.late, {}); late.defined()) {
      open_buffers(b);
      b.buffers.front().copy_(late);
      b.entries.front().front().written = true;
    }
    start(b, flight);
    complete(flight);
    for (auto& part : flight.parts) part.work->wait_input_free();
  }
}

void GradientReducer::agree_on_order() {
  for (int bucket : order_)
    if (std::find(finished_order_.begin(), finished_order_.end(), bucket) == finished_order_.end())
      finished_order_.push_back(bucket);
  comm::Bytes mine(finished_order_.size() * sizeof(int), '\0');
  std::memcpy(mine.data(), finished_order_.data(), mine.size());
  const auto agreed = mesh_.world->broadcast_object(mine, 0);
  TESSERA_CHECK(agreed.size() == mine.size(), "ranks disagree on the number of units");
  std::memcpy(order_.data(), agreed.data(), agreed.size());
  order_agreed_ = true;
  place_in_order();
}

void GradientReducer::abandon() noexcept {
  for (auto& flight : flights_) flight.parts.clear();
  next_ = completed_ = 0;
  holds_unsynced_ = false;
  finished_order_.clear();
  for (auto& b : buckets_) {
    try {
      b.evict();
    } catch (...) {  // no memory: what was prepared is lost, as its backward is
    }
    b.buffers.clear();
    b.late.reset();
    b.expected = b.finished = b.in_slot = false;
    for (auto& segment : b.entries) segment.assign(segment.size(), {});
  }
}

std::int64_t GradientReducer::buffer_bytes() const {
  auto bytes = region_ ? slots_.bytes(wide_slots_used_ ? SlotWidth::kWide : SlotWidth::kNarrow) : 0;
  for (const auto& b : buckets_)
    if (!b.in_slot)
      for (const auto& buffer : b.buffers) bytes += static_cast<std::int64_t>(buffer.nbytes());
  for (const auto& flight : flights_)
    for (const auto& part : flight.parts)
      if (part.buffer.defined()) bytes += static_cast<std::int64_t>(part.buffer.nbytes());
  return bytes;
}

std::int64_t GradientReducer::shard_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& b : buckets_)
    for (std::size_t i = 0; i < b.segments.size(); ++i)
      if (const auto& grad = b.segments[i].leaf.grad(); grad.defined() && !holds_sum(b, i))
        bytes += static_cast<std::int64_t>(grad.nbytes());
  return bytes;
}

}  // namespace tessera::fsdp
