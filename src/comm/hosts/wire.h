#pragma once
// One rank's traffic with one rank on each other host of a group: the control connections, on which they agree about
// each operation and notice who is gone, and the transport, which moves what the operation needs. Failures go through
// Group::fail(): CommError.
//
// A control connection carries a frame for each operation and, when a rank leaves or fails, its last words. The system
// breaks it within seconds when the other host is gone.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/group/group.h"
#include "comm/hosts/transport.h"
#include "comm/shm/fd_socket.h"

namespace tessera::comm {

class Wire {
 public:
  struct Peer {
    int rank = -1;  // in the world; -1: this host's own place
    Descriptor control;
  };
  /// peers: one for each host. `timeout`: without a piece of a message done.
  Wire(Group& group, std::vector<Peer> peers, std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout);
  /// Tells the peers that this rank has left.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// Until all peers have started the group's current operation, which is what this rank announces; throws where they
  /// do not agree. What is sent and received from then on belongs to it.
  void meet(const Announcement& announcement);

  /// What is sent or received, until it is waited for. The memory must stay; destroy messages before it. None: done.
  struct Message {
    int host = -1;
    std::vector<std::unique_ptr<Transport::Message>> pieces = {};
  };
  /// Each kind keeps its own order.
  enum class Kind { kMain, kResults };
  Message send(int host, const void* data, std::int64_t bytes, Kind kind = Kind::kMain);
  Message receive(int host, void* data, std::int64_t bytes, Kind kind = Kind::kMain);
  void wait(Message& message);
  void wait(std::vector<Message>& messages);

  /// Tells the peers, as far as they can be told, that this rank has failed and why. The transport is closed.
  void announce_failure(int rank, const std::string& message);

 private:
  struct Frame;
  struct Link;

  Link& link_of(int host) { return *links_[static_cast<std::size_t>(host)]; }
  template <class Start>
  Message start(int host, std::int64_t bytes, const Start& start);
  bool take_frame(Link& link);
  void check_frame(const Link& link, const Frame& frame);
  void listen(Link& link);
  void look_around();
  void check_words(const Link& link);
  [[noreturn]] void judge(Link& link, const std::string& engine_says);
  [[noreturn]] void fail(const Link& link, const std::string& message);
  [[noreturn]] void fail_lost(const Link& link, int error);
  [[noreturn]] void fail_timeout(const std::string& who, int first);
  void say_last_words(const std::string& words);
  void watch() const;
  void stop_watching();

  Group& group_;
  std::vector<std::unique_ptr<Link>> links_;  // by host; null: this one
  std::unique_ptr<Transport> transport_;
  std::chrono::milliseconds timeout_;
  Announcement announcement_;
  bool said_last_words_ = false;
  Descriptor stop_;      // an eventfd
  std::thread watcher_;  // interrupts the transport when a control connection ends, and now and then
};

}  // namespace tessera::comm
