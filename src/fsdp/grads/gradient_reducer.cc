#include "fsdp/grads/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/unit_order.h"
#include "tensor/mapped_zeros.h"
#include "tensor/span.h"
#include "tessera/base/error.h"
#include "tessera/tensor/allocator.h"

namespace tessera::fsdp {
/// A started reduction.
struct GradientReducer::Flight {
  struct Part {
    std::unique_ptr<comm::Work> work;      // inside the shard group
    std::unique_ptr<comm::Work> replicas;  // then across its copies
    at::Tensor out, leaf;
    at::Tensor buffer;  // that the reduction reads and nobody else keeps
    at::Tensor target;  // where the gradient ends when `out` is temporary: still to be summed over replicas
    bool accumulate = false;
    bool trains = true;  // see Note [What trains]
  };
  std::vector<Part> parts;  // by segment
};

GradientReducer::GradientReducer(Mesh mesh, CommStats& stats, SumMemory sums, at::Device made_on)
    : mesh_(std::move(mesh)), stats_(stats), divisor_(mesh_.world->size()), sums_(sums) {
  if (!made_on.is_cpu()) to_host_ = std::make_unique<tensor::CopyStream>(made_on);
}

GradientReducer::~GradientReducer() {
  for (auto& b : buckets_) b.forget();  // before the transport's memory goes, into which copies may be on their way
}

void GradientReducer::set_units(std::vector<std::vector<TrainableSegment>> units,
                                std::unique_ptr<GradientTransport> transport) {
  make_buckets(std::move(units));
  std::vector<int> registered;
  for (const auto& b : buckets_) registered.push_back(b.position());
  order_ = ReductionOrder(registered);
  flights_.resize(order_.size());
  transport_ = std::move(transport);
  transport_->prepare(buckets_);
  transport_->set_order(order_.buckets());
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
        buckets_.emplace_back(buckets_.size(), static_cast<int>(u), alone, to_host_.get());
      }
      const auto index = static_cast<std::size_t>(alone ? mine.back() : together);
      places.push_back({index, buckets_[index].segments.size()});
      buckets_[index].add_segment(std::move(segment));
    }
  }
}

void GradientReducer::expect(int unit) {
  for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)]) buckets_[static_cast<std::size_t>(b)].expect();
}

const GradientReducer::Place& GradientReducer::place_of(GradientId id) const {
  return places_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.segment)];
}

// See Note [Dtype of contributions].
void GradientReducer::choose_width() {
  transport_->set_width(sync_ && !holds_unsynced_ ? SlotWidth::kNarrow : SlotWidth::kWide);
}

bool GradientReducer::place_is_free(const GradientBucket& b) const {
  return sync_ && transport_->has_places() && transport_->previous_user(b) < static_cast<int>(next_);
}

/// When all have read what lay there.
std::vector<at::Tensor> GradientReducer::take_place(GradientBucket& b) {
  if (const int before = transport_->previous_user(b); before >= 0) wait_input_free(static_cast<std::size_t>(before));
  return transport_->take_place(b);
}

void GradientReducer::open(GradientBucket& b) {
  choose_width();
  if (place_is_free(b)) return b.open(take_place(b), GradientBucket::Place::kTransport);
  std::vector<at::Tensor> buffers;
  for (std::size_t i = 0; i < b.segments.size(); ++i)
    buffers.push_back(at::empty({b.segments[i].layout.numel},
                                b.segments[i].leaf.options().dtype(transport_->contribution_dtype(b, i))));
  b.open(std::move(buffers), GradientBucket::Place::kPrivate);
}

void GradientReducer::accumulate(GradientId id, const at::Tensor& grad) {
  at::NoGradGuard no_grad;
  auto& b = bucket_of(id);
  if (b.reducing() && b.alone) return b.accumulate_late(grad);
  if (b.reducing())
    throw Error(
        "a gradient of unit " + std::to_string(id.unit) +
        " arrived after the unit was reduced. Run all backward passes through a module's outputs in one call of "
        "backward(), or set_requires_gradient_sync(false) for all but the last");
  if (!b.has_buffers()) open(b);
  b.accumulate(place_of(id).segment, static_cast<std::size_t>(id.entry), grad);
}

std::shared_ptr<tensor::PreparedGradient> GradientReducer::reserve(GradientId id) {
  at::NoGradGuard no_grad;
  auto& b = bucket_of(id);
  if (b.reducing()) return nullptr;
  if (!b.has_buffers()) open(b);
  return b.reserve(place_of(id).segment, static_cast<std::size_t>(id.entry));
}

void GradientReducer::commit(GradientId id, tensor::PreparedGradient& prepared) {
  const bool stayed = bucket_of(id).commit(place_of(id).segment, static_cast<std::size_t>(id.entry), prepared);
  if (!stayed) accumulate(id, prepared.memory);
}

void GradientReducer::parameter_finished(GradientId id) {
  auto& b = bucket_of(id);
  if (b.alone) finish(b);
}

void GradientReducer::unit_finished(int unit) {
  for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)]) finish(buckets_[static_cast<std::size_t>(b)]);
}

void GradientReducer::finish(GradientBucket& b) {
  if (!sync_ || b.state == BucketState::kFinished || b.reducing()) return;
  b.state = BucketState::kFinished;
  order_.observe(b.index);
  start_ready(b);
}

// See Note [Order of reductions].
void GradientReducer::start_ready(const GradientBucket& newest) {
  const auto* too_early = to_host_ ? &newest : nullptr;
  while (next_ < order_.size() && !in_order(next_).awaited() && &in_order(next_) != too_early) start_next();
}

void GradientReducer::start_next() {
  start(in_order(next_), flights_[next_]);
  ++next_;
  const auto due = reductions_due(next_, mesh_.replicate != nullptr);
  shard_until(due.sharded);
  complete_until(due.completed);
}

void GradientReducer::start(GradientBucket& b, Flight& flight) {
  at::NoGradGuard no_grad;
  const tensor::Span span("fsdp::start_reduce", b.unit_name());
  b.evict();
  b.land();
  if (!b.has_buffers()) open(b);
  b.fill_missing();
  if (transport_->has_places() && b.place() == GradientBucket::Place::kPrivate) b.move_to_transport(take_place(b));
  for (std::size_t i = 0; i < b.segments.size(); ++i) start_segment(b, i, flight);
  ++stats_.reductions;
  b.close();
  b.state = BucketState::kReducing;
}

void GradientReducer::start_segment(GradientBucket& b, std::size_t segment, Flight& flight) {
  const auto& s = b.segments[segment];
  auto& part = flight.parts.emplace_back();
  part.leaf = s.leaf;
  part.accumulate = s.leaf.grad().defined();
  part.trains = part.accumulate || s.trains();
  part.out = part.accumulate ? s.leaf.grad() : empty_sum(b, segment);
  comm::ReduceOptions how{.scale = 1.0 / divisor_, .accumulate = part.accumulate};
  // Summed over replicas in the dtype of reductions, then added to what is there.
  if (mesh_.replicate && (part.accumulate || s.reduce != part.out.scalar_type())) {
    part.target = part.out;
    part.out = at::empty({s.layout.slice_numel}, s.leaf.options().dtype(s.reduce).requires_grad(false));
    how.accumulate = false;
  }
  if (b.place() == GradientBucket::Place::kPrivate) part.buffer = b.buffers()[segment];
  part.work = transport_->reduce(b, segment, part.out, how);
  stats_.reduced_numel += s.layout.numel;
}

at::Tensor GradientReducer::empty_sum(const GradientBucket& b, std::size_t segment) const {
  if (auto place = transport_->place_of_sum(b, segment); place.defined()) return place;
  const auto& s = b.segments[segment];
  const auto bytes = s.layout.slice_numel * static_cast<std::int64_t>(s.leaf.element_size());
  if (sums_ == SumMemory::kOwn || (sums_ == SumMemory::kFreeOfSteps && !tensor::has_free_block(bytes)))
    return tensor::mapped_zeros(s.layout.slice_numel, s.leaf.scalar_type());
  const tensor::FarEndScope scope;  // not kept between steps: activations need the memory while there are none
  return at::empty({s.layout.slice_numel}, s.leaf.options());
}

void GradientReducer::shard_until(std::size_t count) {
  for (; sharded_ < count; ++sharded_) {
    const tensor::Span span("fsdp::reduce", in_order(sharded_).unit_name());
    shard(flights_[sharded_]);
  }
}

void GradientReducer::complete_until(std::size_t count) {
  shard_until(count);
  for (; completed_ < count; ++completed_) complete(flights_[completed_]);
}

/// Sums of the shard group are there; those across replicas start.
void GradientReducer::shard(Flight& flight) {
  for (auto& part : flight.parts) {
    part.buffer.defined() ? part.work->wait_input_free() : part.work->wait();
    part.buffer = at::Tensor();
    if (mesh_.replicate) part.replicas = mesh_.replicate->all_reduce(part.out, comm::ReduceOp::kSum);
  }
}

void GradientReducer::complete(Flight& flight) {
  for (auto& part : flight.parts) {
    if (part.replicas) part.replicas->wait();
    if (part.target.defined()) part.out = part.accumulate ? part.target.add_(part.out) : part.target.copy_(part.out);
    if (part.trains) part.leaf.mutable_grad() = part.out;
    part.out = part.target = at::Tensor();
  }
}

void GradientReducer::wait_input_free(std::size_t position) {
  at::NoGradGuard no_grad;
  shard_until(position + 1);
  for (auto& part : flights_[position].parts) part.work->wait_input_free();
}

void GradientReducer::backward_finished() {
  at::NoGradGuard no_grad;
  if (!sync_) {  // what may follow is a backward with contributions of the other width
    for (auto& b : buckets_)
      if (b.place() == GradientBucket::Place::kTransport) b.leave_transport();
    holds_unsynced_ = true;
    return;
  }
  while (next_ < order_.size()) start_next();
  complete_until(order_.size());
  for (std::size_t i = 0; i < order_.size(); ++i) {
    wait_input_free(i);
    flights_[i].parts.clear();
  }
  reduce_late();
  check_same_training();
  holds_unsynced_ = false;
  next_ = sharded_ = completed_ = 0;
  for (auto& b : buckets_) b.state = BucketState::kIdle;
  if (order_.agreed()) return;
  order_.agree(*mesh_.world);
  transport_->set_order(order_.buckets());
}

// See Note [What trains]. Asked only where it has changed: a rank that is alone with that finds no partner, by name.
void GradientReducer::check_same_training() {
  std::string mine;
  for (const auto& b : buckets_)
    for (const auto& s : b.segments) mine += s.trains() ? '1' : '0';
  if (trains_.empty()) trains_.assign(mine.size(), '1');
  if (mine == trains_) return;
  const auto all = mesh_.world->all_gather_objects(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw Error("ranks 0 and " + std::to_string(rank) +
                  " have frozen different parameters since fully_shard(): freeze the same ones on every rank");
  trains_ = std::move(mine);
}

void GradientReducer::reduce_late() {
  std::vector<GradientBucket*> alone;
  for (std::size_t i = 0; i < order_.size(); ++i)
    if (in_order(i).alone) alone.push_back(&in_order(i));
  if (alone.empty()) return;
  const auto count = at::zeros({static_cast<std::int64_t>(alone.size())}, at::kLong);
  auto* ranks_with = count.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < alone.size(); ++i) ranks_with[i] = alone[i]->late.defined() ? 1 : 0;
  mesh_.world->all_reduce(count, comm::ReduceOp::kSum)->wait();
  for (std::size_t i = 0; i < alone.size(); ++i)
    if (ranks_with[i] > 0) reduce_late(*alone[i]);
}

void GradientReducer::reduce_late(GradientBucket& b) {
  Flight flight;
  if (b.late.defined()) {
    open(b);
    b.take_late();
  }
  start(b, flight);
  shard(flight);
  complete(flight);
  for (auto& part : flight.parts) part.work->wait_input_free();
}

void GradientReducer::abandon() noexcept {
  for (auto& flight : flights_) flight.parts.clear();
  next_ = sharded_ = completed_ = 0;
  holds_unsynced_ = false;
  order_.forget_observed();
  for (auto& b : buckets_) b.forget();
}

void GradientReducer::forget_unsynced(int unit) noexcept {
  for (const int b : buckets_of_unit_[static_cast<std::size_t>(unit)])
    if (auto& bucket = buckets_[static_cast<std::size_t>(b)]; bucket.has_buffers()) bucket.forget();
  const auto holds = [](const GradientBucket& b) { return b.has_buffers(); };
  holds_unsynced_ = holds_unsynced_ && std::any_of(buckets_.begin(), buckets_.end(), holds);
}

std::int64_t GradientReducer::buffer_bytes() const {
  auto bytes = transport_->bytes();
  for (const auto& b : buckets_)
    if (b.place() == GradientBucket::Place::kPrivate)
      for (const auto& buffer : b.buffers()) bytes += static_cast<std::int64_t>(buffer.nbytes());
  for (const auto& flight : flights_)
    for (const auto& part : flight.parts)
      if (part.buffer.defined()) bytes += static_cast<std::int64_t>(part.buffer.nbytes());
  return bytes;
}

std::int64_t GradientReducer::shard_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& b : buckets_)
    for (std::size_t i = 0; i < b.segments.size(); ++i)
      if (const auto& grad = b.segments[i].leaf.grad(); grad.defined() && !transport_->holds_sum(b, i))
        bytes += static_cast<std::int64_t>(grad.nbytes());
  return bytes;
}

}  // namespace tessera::fsdp
