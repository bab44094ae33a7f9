#pragma once
// One rank's end of a group: counters that say how far everyone is, sleeping until peers catch up, and what to say when
// they do not. Ranks are numbered within the group here, members within the host; messages and errors use the world's
// ranks (name()). One thread at a time uses it: see Note [Turns] in comm/group/operation_queue.h.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group/control.h"
#include "comm/shm/host.h"
#include "tessera/base/error.h"

namespace tessera::comm {

using Counter = std::atomic<std::uint64_t> RankState::*;

class Group {
 public:
  Group(std::shared_ptr<Host> host, std::shared_ptr<SharedRegion> memory, std::vector<int> members, int rank,
        std::chrono::milliseconds timeout);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }
  Host& host() const { return *host_; }
  const std::shared_ptr<Host>& host_pointer() const { return host_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const Control& control() const { return control_; }
  /// What rank r of this group is called in the world.
  int name(int r) const;

  /// For ranks that also talk to other hosts.
  struct Network {
    /// Tells the other hosts that this group has failed.
    std::function<void(int world_rank, const std::string& message)> tell_failure;
    /// A neighbour may be waiting for another host: this is added to the timeout for its data, so that whoever knows
    /// what is missing speaks first.
    std::chrono::milliseconds data_grace{0};
  };
  void serve_network(Network network) { network_ = std::move(network); }

  /// Whoever waits may try for some tens of microseconds before it sleeps, where the ranks have a core each.
  void let_spin(bool spins) { spins_ = spins; }
  /// From any thread: who waits here gives up, without a failure that peers learn of.
  void interrupt();

  /// Starts an operation, returns its sequence. The oldest one in the ring must be finished here.
  std::uint64_t post(const Announcement& announcement);
  std::uint64_t posted() const { return posted_; }
  /// Waits until all ranks have started this operation and checks that they agree about it. It is then the current one.
  void meet(std::uint64_t sequence);
  /// This rank has read all that it needs from peers.
  void finish(std::uint64_t sequence) { publish(&RankState::done, sequence + 1); }
  /// Waits until no peer reads this rank's memory for this operation.
  void await_finished(std::uint64_t sequence);

  /// Tells the peers a counter of this rank.
  void publish(Counter counter, std::uint64_t value);
  /// Waits until the counter of `peer` (all peers if -1) has reached `value`.
  void await(Counter counter, std::uint64_t value, int peer = -1);

  /// What this rank is doing, for messages here and at the peers.
  RankRecord& record() const { return host_->rank_record(host_->host_rank()); }
  /// That this rank waits for one of the world, in the current operation; -1: it does not wait any more.
  void note_wait(int world_rank);

  /// Gives up: from now on every operation here throws this error, and peers that wait learn of it.
  [[noreturn]] void fail(int world_rank, const std::string& message);
  /// From any thread, as of the Communicator.
  std::string failure() const;
  Peers peers() const;
  /// Throws where the world has failed, a neighbour that has not finished the current operation is dead, or this rank
  /// was interrupted.
  void check_world();
  /// "rank 2: operation 7, barrier"
  std::string current_name() const;
  std::uint64_t current() const { return current_; }
  /// Throws the error of an earlier failure.
  void check_usable() const;

  std::uint64_t round = 0;  // of the staging buffers; the same on all ranks between operations

 private:
  bool reached(Counter counter, std::uint64_t value, int peer) const;
  void check_health(Counter counter, std::uint64_t value, int peer);
  void check_interrupted() const;
  void check_agreement();
  void check_alive(Counter counter, std::uint64_t value);
  [[noreturn]] void fail_timeout(Counter counter, std::uint64_t value, int peer);
  [[noreturn]] void fail_with_the_world();
  std::string departure_of(int r) const;
  /// " (in ...)", by what the rank has noted; empty without a note.
  std::string activity_of(int r) const;
  /// How far a rank is with the current operation, as others see it.
  std::string progress_of(int r) const;

  std::shared_ptr<Host> host_;
  std::shared_ptr<SharedRegion> memory_;
  std::vector<int> members_;
  int rank_;
  std::chrono::milliseconds timeout_;
  Control control_;
  std::uint64_t posted_ = 0;
  std::uint64_t current_ = 0;
  Announcement mine_;  // what this rank announced for the current operation
  std::chrono::steady_clock::time_point next_liveness_check_;
  std::unique_ptr<CommError> broken_;
  Network network_;
  bool spins_ = true;
  std::atomic<bool> interrupted_{false};
};

/// "all_gather of 64 x Float"
std::string describe(const Announcement& announcement);
/// All but the sizes of objects, which each rank chooses.
bool agrees(const Announcement& a, const Announcement& b);

}  // namespace tessera::comm
