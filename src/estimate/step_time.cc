#include "estimate/step_time.h"

#include <algorithm>
#include <optional>

#include "base/unit_order.h"
#include "estimate/host_operations.h"

namespace tessera::estimate {
namespace {

using Kind = PlayedEvent::Kind;
using config::BackwardPrefetch;
using config::ShardingStrategy;

/// Who shares with whom, and how bytes then move: what fsdp/plan/mesh.h and memory_form.h choose.
struct SharingForm {
  bool whole, hybrid, copies, kept;
  int slices;       // ranks that share a copy
  bool replicated;  // several copies, whose gradients are summed

  SharingForm(ShardingStrategy strategy, const Cluster& c) {
    whole = strategy == ShardingStrategy::kNoShard;
    hybrid = strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
    copies = c.hosts > 1 && !hybrid && !whole;
    kept = whole || strategy == ShardingStrategy::kShardGradOp || strategy == ShardingStrategy::kHybridShardZero2;
    slices = whole ? 1 : hybrid ? c.ranks : c.ranks * c.hosts;
    replicated = whole ? c.ranks * c.hosts > 1 : hybrid && c.hosts > 1;
  }
};

class Player {
 public:
  Player(const StepShape& shape, const Schedule& schedule, const Cluster& cluster)
      : shape_(shape), schedule_(schedule), cluster_(cluster), form_(schedule.strategy, cluster) {
    units_.push_back({&shape.root, 0});
    for (const auto& block : shape.blocks) units_.push_back({&block, count()});
  }

  StepTime step() {
    played_ = {};
    const double begin = now_;
    publish();
    for (int i = 0; i < schedule_.accumulation; ++i) {
      sync_ = schedule_.sync_each_batch || i + 1 == schedule_.accumulation;
      forward();
      backward();
    }
    for (int i = 0; i < 2; ++i) wait_for_small();  // the losses' sum and the norm
    update();
    played_.seconds = now_ - begin;
    played_.exposed = played_.seconds - played_.computed;
    return std::move(played_);
  }

 private:
  enum class State { kSharded, kGathering, kWhole };
  struct Unit {
    const UnitShape* shape;
    int index;
    State state = State::kSharded;
    double gathered = 0;        // when its gather is done
    std::int64_t position = 0;  // of its forward
  };
  struct Reduction {
    int unit;
    double numel;
    double sharded = 0, completed = 0;  // when these are done
  };

  Unit& unit(int index) { return units_[static_cast<std::size_t>(index)]; }
  double item() const { return static_cast<double>(shape_.compute_bytes); }

  void compute(double seconds) {
    now_ += seconds + debt_;
    debt_ = 0;
    played_.computed += seconds;
  }
  void compute(const Work& work) { compute(work.flops / cluster_.rates.flops + work.bytes / cluster_.rates.memory); }
  void pass_over(double bytes) { compute(Work{0, bytes}); }

  /// Operations run one after the other, beside computation: when this one is done.
  double start(const OperationCost& cost) {
    free_at_ = std::max(free_at_, now_) + cost.seconds;
    debt_ += cost.rank_seconds;
    played_.link_bytes += cost.link_bytes;
    return free_at_;
  }
  void wait(double until, int unit, const char* operation) {
    const double waited = until - now_;
    if (waited <= 0) return;
    if (waited > played_.longest.seconds) played_.longest = {waited, unit, operation};
    now_ = until;
    debt_ = std::max(0.0, debt_ - waited);  // the cores were free for it
  }
  void wait_for_small() { wait(start(cost_of_small(cluster_)), 0, "numbers of the step"); }
  void note(Kind kind, int unit) { played_.events.push_back({kind, unit}); }

  void start_gather(Unit& u) {
    if (u.state != State::kSharded) return;
    u.state = State::kGathering;
    ++in_flight_;
    u.gathered = now_;
    if (!form_.copies) return;
    note(Kind::kStartGather, u.index);
    for (const auto bytes : u.shape->gathered)
      u.gathered = start(cost_of(HostOperation::kAllGather, cluster_, static_cast<double>(bytes), 1));
  }
  void gather(Unit& u, const char* operation) {
    start_gather(u);
    if (u.state != State::kGathering) return;
    if (form_.copies) note(Kind::kWaitGather, u.index);
    wait(u.gathered, u.index, operation);
    u.state = State::kWhole;
    --in_flight_;
  }
  void prefetch(std::optional<int> next) {
    if (!next || !form_.copies) return;
    if (in_flight_ < schedule_.max_gathers_in_flight) start_gather(unit(*next));
  }

  void begin_forward(int index) {
    order_.visit(index);
    gather(unit(index), "gather in the forward");
    if (schedule_.forward_prefetch) prefetch(order_.after(index));
  }
  void forward() {
    order_.begin_forward();
    begin_forward(0);
    for (int i = 1; i < count(); ++i) {
      begin_forward(i);
      compute(unit(i).shape->forward);
      unit(i).position = order_.end_visit(i);
      if (!form_.kept) unit(i).state = State::kSharded;
    }
    compute(shape_.root.forward);
    unit(0).position = order_.end_visit(0);
  }

  void begin_backward(int index) {
    gather(unit(index), "gather in the backward");
    if (schedule_.backward_prefetch == BackwardPrefetch::kPre) prefetch(order_.before(unit(index).position));
  }
  void backward() {
    begin_backward(0);
    compute(shape_.root.backward);
    for (const auto numel : shape_.root.heads) reduce(0, numel);
    for (int i = count() - 1; i > 0; --i) {
      begin_backward(i);
      const auto& u = *unit(i).shape;
      compute(shape_.recomputes(static_cast<std::size_t>(i - 1)) ? u.forward + u.backward : u.backward);
      if (!form_.whole) unit(i).state = State::kSharded;
      if (schedule_.backward_prefetch == BackwardPrefetch::kPost) prefetch(order_.before(unit(i).position));
      reduce(i, u.reduced);
    }
    for (const auto numel : shape_.root.tables) reduce(0, numel);
    reduce(0, shape_.root.reduced);
    if (sync_) end_reductions();
    order_.end_backward();
    if (!form_.whole) unit(0).state = State::kSharded;
  }

  void reduce(int unit, std::int64_t numel) {
    if (!sync_ || numel == 0) return;
    auto& r = flights_.emplace_back(Reduction{unit, static_cast<double>(numel)});
    note(Kind::kStartReduce, unit);
    if (form_.copies) r.sharded = start(cost_of(HostOperation::kReduceScatter, cluster_, r.numel, item()));
    const auto due = reductions_due(flights_.size(), form_.replicated);
    shard_until(due.sharded);
    complete_until(due.completed);
  }
  void shard_until(std::size_t count) {
    for (; sharded_ < count; ++sharded_) {
      auto& r = flights_[sharded_];
      note(Kind::kWaitReduce, r.unit);
      wait(r.sharded, r.unit, "reduction");
      // Where ranks share memory each sums up its slice of all inputs itself.
      if (!form_.copies && !form_.whole && cluster_.ranks > 1) pass_over(r.numel * (item() + 4.0 / cluster_.ranks));
      if (!form_.replicated) continue;
      note(Kind::kStartReplicas, r.unit);
      r.completed = form_.whole
                        ? start_sum_of_copies(r.numel)
                        : start(cost_side_by_side(HostOperation::kAllReduce, cluster_, r.numel / form_.slices, item()));
    }
  }
  double start_sum_of_copies(double numel) {
    if (cluster_.hosts > 1) return start(cost_of(HostOperation::kAllReduce, cluster_, numel, item()));
    // One host: each rank sums up a part, and reads those of the others.
    const double seconds = 3 * numel * item() / cluster_.rates.memory;
    return start({.seconds = seconds, .rank_seconds = seconds});
  }
  void complete_until(std::size_t count) {
    shard_until(count);
    for (; completed_ < count; ++completed_) {
      if (!form_.replicated) continue;
      note(Kind::kWaitReplicas, flights_[completed_].unit);
      wait(flights_[completed_].completed, flights_[completed_].unit, "sum across hosts");
    }
  }
  void end_reductions() {
    complete_until(flights_.size());
    flights_.clear();
    sharded_ = completed_ = 0;
    if (shape_.reduces_alone()) wait_for_small();
    if (form_.copies) wait_for_small();  // whether all gathered the same
  }

  /// Where masters are apart each rank casts its slice for the coming forward.
  void publish() {
    if (shape_.compute_bytes < 4) pass_over(6.0 * static_cast<double>(shape_.trainable) / form_.slices);
  }
  /// The norm reads gradients; the update reads them, and reads and writes masters and state.
  void update() {
    pass_over((4.0 + 12.0) * static_cast<double>(shape_.trainable) / form_.slices +
              2.0 * static_cast<double>(shape_.state_bytes) / form_.slices);
  }
  int count() const { return static_cast<int>(units_.size()); }

  const StepShape& shape_;
  Schedule schedule_;
  Cluster cluster_;
  SharingForm form_;
  std::vector<Unit> units_;  // the root first
  GatherOrder order_;
  std::vector<Reduction> flights_;
  std::size_t sharded_ = 0, completed_ = 0;
  int in_flight_ = 0;  // gathers that are started and not waited for
  double now_ = 0, free_at_ = 0;
  double debt_ = 0;  // of the rank's cores, for what operations do beside computation
  bool sync_ = true;
  StepTime played_;
};

}  // namespace

StepTime play_step(const StepShape& shape, const Schedule& schedule, const Cluster& cluster) {
  Player player(shape, schedule, cluster);
  player.step();  // the first does not know what to gather ahead
  return player.step();
}

}  // namespace tessera::estimate
