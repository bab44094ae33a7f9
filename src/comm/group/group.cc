#include "comm/group/group.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>

#include "comm/group/patience.h"
#include "comm/shm/futex.h"

namespace tessera::comm {
namespace {

constexpr int kSpins = 4000;  // some tens of microseconds, about what a futex round trip costs
constexpr std::chrono::milliseconds kLivenessInterval{100};
constexpr std::chrono::milliseconds kNoTime{0};
constexpr int kNamedRanks = 16;  // in larger groups messages are about those at fault alone

}  // namespace

bool agrees(const Announcement& a, const Announcement& b) {
  return a.op == b.op && a.dtype == b.dtype && a.detail == b.detail && a.numel == b.numel;
}

std::string describe(const Announcement& a) {
  std::string text = op_name(a.op);
  if (a.op == Op::kAllReduce) {
    constexpr const char* kNames[] = {"(sum)", "(max)", "(min)"};
    text += kNames[std::clamp(a.detail, 0, 2)];
  }
  if (a.op == Op::kBroadcast || a.op == Op::kBroadcastObject || a.op == Op::kScatter)
    text += fmt::format(" from {}", a.detail);
  if (a.op == Op::kGather) text += fmt::format(" to {}", a.detail);
  if (a.op == Op::kMapShared) text += fmt::format(" of {} bytes", a.numel);
  if (a.dtype >= 0) text += fmt::format(" of {} x {}", a.numel, c10::toString(static_cast<c10::ScalarType>(a.dtype)));
  return text;
}

Group::Group(std::shared_ptr<Host> host, std::shared_ptr<SharedRegion> memory, std::vector<int> members, int rank,
             std::chrono::milliseconds timeout)
    : host_(std::move(host)),
      memory_(std::move(memory)),
      members_(std::move(members)),
      rank_(rank),
      timeout_(timeout),
      control_(memory_->data(), static_cast<int>(members_.size())) {}

Group::~Group() {
  control_.rank(rank_).left.store(1);
  publish(&RankState::posted, posted_);  // wakes whoever waits, so that it sees that this rank has left
}

std::uint64_t Group::post(const Announcement& announcement) {
  check_usable();
  const std::uint64_t sequence = posted_;
  current_ = sequence;
  mine_ = announcement;
  if (sequence >= kRing) await(&RankState::done, sequence - kRing + 1);
  control_.announcement(sequence, rank_) = announcement;
  posted_ = sequence + 1;
  publish(&RankState::posted, posted_);
  return sequence;
}

void Group::meet(std::uint64_t sequence) {
  check_usable();
  current_ = sequence;
  mine_ = control_.announcement(sequence, rank_);
  await(&RankState::posted, sequence + 1);
  check_agreement();
}

void Group::await_finished(std::uint64_t sequence) {
  check_usable();
  if (posted_ <= sequence + kRing) {
    current_ = sequence;
    mine_ = control_.announcement(sequence, rank_);
  }
  await(&RankState::done, sequence + 1);
}

// Sequentially consistent on both sides: either the peer's last look at the counter sees the new value, or this rank
// sees that the peer is going to sleep and rings.
void Group::publish(Counter counter, std::uint64_t value) {
  (control_.rank(rank_).*counter).store(value);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    RankState& peer = control_.rank(r);
    if (peer.sleepers.load() == 0) continue;
    peer.bell.fetch_add(1);
    futex_wake_all(peer.bell);
  }
}

bool Group::reached(Counter counter, std::uint64_t value, int peer) const {
  if (peer >= 0) return (control_.rank(peer).*counter).load() >= value;
  for (int r = 0; r < size(); ++r) {
    if (r != rank_ && (control_.rank(r).*counter).load() < value) return false;
  }
  return true;
}

void Group::await(Counter counter, std::uint64_t value, int peer) {
  if (reached(counter, value, peer)) return;
  if (spins_ && host_->may_spin()) {
    for (int i = 0; i < kSpins; ++i) {
      cpu_pause();
      if (reached(counter, value, peer)) return;
    }
  }
  RankState& own = control_.rank(rank_);
  struct Sleeping {
    Sleeping(Group& g, RankState& s) : group(g), state(s) { state.sleepers.store(1); }
    ~Sleeping() {
      state.sleepers.store(0);
      group.note_wait(-1);
    }
    Group& group;
    RankState& state;
  } sleeping(*this, own);
  const bool moves_data = counter == &RankState::pushed || counter == &RankState::consumed;
  Patience patience(timeout_ + (moves_data ? network_.data_grace : kNoTime));
  next_liveness_check_ = {};
  while (true) {
    const std::uint32_t bell = own.bell.load();
    if (reached(counter, value, peer)) return;
    check_health(counter, value, peer);
    const auto left = patience.left();
    if (left.count() < 0) fail_timeout(counter, value, peer);
    futex_wait(own.bell, bell, std::min(kLivenessInterval, left + std::chrono::milliseconds(1)));
  }
}

void Group::interrupt() {
  interrupted_.store(true);
  RankState& own = control_.rank(rank_);
  own.bell.fetch_add(1);
  futex_wake_all(own.bell);
}

void Group::check_interrupted() const {
  if (interrupted_.load()) throw Error(current_name() + ": given up, this rank leaves the group");
}

void Group::check_health(Counter counter, std::uint64_t value, int peer) {
  check_interrupted();
  if (counter == &RankState::posted) check_agreement();
  if (host_->abort_record().is_set() && !reached(counter, value, peer)) fail_with_the_world();
  for (int r = 0; r < size(); ++r) {
    const RankState& state = control_.rank(r);
    if (r == rank_ || state.left.load() == 0 || (state.*counter).load() >= value) continue;
    fail(name(r), current_name() + ": " + departure_of(r) + ".");
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_liveness_check_) return;
  const bool waited = next_liveness_check_ != std::chrono::steady_clock::time_point();
  next_liveness_check_ = now + kLivenessInterval;
  check_alive(counter, value);
  for (int r = 0; waited && r < size(); ++r) {
    if (r == rank_ || (peer >= 0 && r != peer) || (control_.rank(r).*counter).load() >= value) continue;
    return note_wait(name(r));
  }
}

std::string Group::departure_of(int r) const {
  return fmt::format("rank {} has left the group after {} operations{}", name(r), control_.rank(r).posted.load(),
                     activity_of(r));
}

Peers Group::peers() const {
  Peers peers;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const bool left = control_.rank(r).left.load() != 0;
    peers.some_left = peers.some_left || left;
    if (left || size() <= kNamedRanks)
      peers.doing += (peers.doing.empty() ? "" : "; ") +
                     (left ? departure_of(r) : fmt::format("rank {}{}", name(r), activity_of(r)));
  }
  return peers;
}

std::string Group::failure() const {
  const AbortRecord& abort = host_->abort_record();
  return abort.is_set() ? abort.text : std::string();
}

void Group::fail_with_the_world() {
  const AbortRecord& abort = host_->abort_record();
  fail(abort.rank, fmt::format("{}: another rank has failed. {}", current_name(), abort.text));
}

void Group::check_world() {
  check_interrupted();
  if (host_->abort_record().is_set()) fail_with_the_world();
  check_alive(&RankState::done, current_ + 1);
}

void Group::check_alive(Counter counter, std::uint64_t value) {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || !host_->has_ended(members_[static_cast<std::size_t>(r)])) continue;
    const RankState& state = control_.rank(r);
    if (state.left.load() != 0 || (state.*counter).load() >= value) continue;  // it had finished before it ended
    fail(name(r),
         fmt::format("{}: the process of rank {} has ended (it was killed or it crashed) after it had started {} "
                     "operations{}. Look at that rank's output; a run goes on from its newest checkpoint.",
                     current_name(), name(r), state.posted.load(), activity_of(r)));
  }
}

void Group::check_agreement() {
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || control_.rank(r).posted.load() <= current_) continue;
    const Announcement& other = control_.announcement(current_, r);
    if (agrees(mine_, other)) continue;
    fail(name(r),
         fmt::format("Ranks disagree about operation {}: rank {} called {}{}, rank {} called {}{}. All ranks must make "
                     "the same calls in the same order.",
                     current_, name(rank_), describe(mine_), activity_of(rank_), name(r), describe(other),
                     activity_of(r)));
  }
}

int Group::name(int r) const {
  return members_[static_cast<std::size_t>(r)] + host_->first_rank();
}

std::string Group::activity_of(int r) const {
  return host_->rank_record(members_[static_cast<std::size_t>(r)]).where();
}

void Group::note_wait(int world_rank) {
  RankRecord& own = record();
  if (world_rank < 0) {
    own.waiting_since.store(0, std::memory_order_relaxed);
    return;
  }
  own.waiting_for.store(world_rank, std::memory_order_relaxed);
  if (own.waiting_since.load(std::memory_order_relaxed) != 0) return;
  own.operation.set(fmt::format("operation {}, {}", current_, describe(mine_)));
  own.waiting_since.store(steady_nanoseconds(), std::memory_order_relaxed);
}

std::string Group::progress_of(int r) const {
  const std::uint64_t posted = control_.rank(r).posted.load();
  if (posted > current_) return fmt::format("rank {} has started it and not finished its part", name(r));
  if (posted == 0) return fmt::format("rank {} has not started any operation", name(r));
  return fmt::format("rank {} has not arrived, its last operation was number {} ({})", name(r), posted - 1,
                     describe(control_.announcement(posted - 1, r)));
}

void Group::fail_timeout(Counter counter, std::uint64_t value, int peer) {
  std::string who, others;
  int first = -1;
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    if ((peer >= 0 && r != peer) || (control_.rank(r).*counter).load() >= value) {
      const bool arrived = control_.rank(r).posted.load() > current_;
      if (size() <= kNamedRanks)
        others += "; " + (arrived ? fmt::format("rank {} has arrived", name(r)) : progress_of(r)) + activity_of(r);
      continue;
    }
    if (first < 0) first = r;
    who += (who.empty() ? "" : "; ") + progress_of(r) + activity_of(r);
  }
  fail(first < 0 ? -1 : name(first),
       fmt::format("{}: no progress for {} ms: {}{}. If a rank is only slow, raise the operation timeout "
                   "(TESSERA_COMM_TIMEOUT_S).",
                   current_name(), timeout_.count(), who, others));
}

std::string Group::current_name() const {
  const char* what = posted_ > current_ ? "" : " (waiting for room)";
  return fmt::format("rank {}: operation {}, {}{}{}", name(rank_), current_, describe(mine_), what, activity_of(rank_));
}

void Group::fail(int world_rank, const std::string& message) {
  const std::string name = op_name(mine_.op);
  broken_ = std::make_unique<CommError>(message, world_rank, name, static_cast<std::int64_t>(current_));
  host_->abort_record().set(world_rank, message);
  if (network_.tell_failure) network_.tell_failure(world_rank, message);
  throw *broken_;
}

void Group::check_usable() const {
  if (broken_) throw *broken_;
}

}  // namespace tessera::comm
