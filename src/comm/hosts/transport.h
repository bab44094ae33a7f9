#pragma once
// The engine that moves bytes between a lane's ranks, one on each host. It knows no operations: the Wire has all ranks
// agree on one before anything is sent for it, so sizes always match. Messages from one host to another with one tag
// arrive in the order in which they were sent; all are on their way while nobody waits.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::comm {

class Transport {
 public:
  /// A message that has been started. Destroyed before it is done, it is given up: its memory is not touched any more,
  /// and the transport fit for nothing but its destruction.
  struct Message {
    virtual ~Message() = default;
  };

  virtual ~Transport() = default;
  /// tag: 0 to 99.
  virtual std::unique_ptr<Message> send(int host, const std::byte* data, std::int64_t bytes, int tag) = 0;
  virtual std::unique_ptr<Message> receive(int host, std::byte* data, std::int64_t bytes, int tag) = 0;
  /// True when it is done. False when interrupted: it is still on its way then. A std::exception where the connection
  /// with its host has broken, and from send() and receive() too.
  virtual bool wait(Message& message) = 0;
  /// From any thread: a wait() that is going on returns.
  virtual void interrupt() = 0;
  /// What messages call it.
  virtual std::string name() const = 0;
};

}  // namespace tessera::comm
