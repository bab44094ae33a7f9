#pragma once
// One rank's traffic with one rank on each other host of a group. Sends and receives are started and then waited for;
// per peer they are matched in order. Every piece carries the operation it belongs to, so that ranks which do different
// things are told so instead of mixing their data. Failures go through Group::fail(): CommError.
#include <deque>
#include <memory>
#include <vector>

#include "comm/group/group.h"
#include "comm/hosts/network.h"

namespace tessera::comm {

class Wire {
 public:
  struct Peer {
    int rank = -1;  // in the world; -1: this host's own place
    Connection connection;
  };
  /// peers: one for each host. `timeout`: without any byte moved.
  Wire(Group& group, std::vector<Peer> peers, std::chrono::milliseconds timeout);
  /// Tells the peers that this rank has left.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// The group's current operation, as announced; what follows belongs to it.
  void begin(const Announcement& announcement) { announcement_ = announcement; }
  /// Both return how many have been started with this host; the memory must stay until they are waited for.
  std::uint64_t send(int host, const void* data, std::int64_t bytes);
  std::uint64_t receive(int host, void* data, std::int64_t bytes);
  /// Until the first `count` sends to (receives from) this host are done.
  void wait_sent(int host, std::uint64_t count);
  void wait_received(int host, std::uint64_t count);
  void wait_all();
  /// Moves what can be moved at once. True when there is more.
  bool progress();
  /// Tells the peers, as far as they can be told, that this rank has failed and why.
  void announce_failure(int rank, const std::string& message);

 private:
  struct Frame;
  struct Outgoing;
  struct Incoming;
  struct Link;

  template <class Done>
  void wait_until(const Done& done);
  bool poll_once(std::chrono::milliseconds nap);
  void push(Link& link);
  void pull(Link& link);
  void check_frame(Link& link);
  void listen_to_life(Link& link);
  void judge(Link& link, bool data_is_over);
  [[noreturn]] void fail(const Link& link, const std::string& message);
  [[noreturn]] void fail_timeout();
  void say_last_words(const std::string& words);

  Group& group_;
  std::vector<std::unique_ptr<Link>> links_;  // by host; null: this one
  std::chrono::milliseconds timeout_;
  Announcement announcement_;
  std::chrono::steady_clock::time_point last_progress_;
  bool said_last_words_ = false;
};

}  // namespace tessera::comm
