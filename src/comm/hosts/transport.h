#pragma once
// The engine that moves bytes between a lane's ranks, one on each host. It knows no operations: the Wire has all ranks
// agree on one before anything is sent for it, so sizes always match. Messages from one host to another with one tag
// arrive in the order in which they were sent; all are on their way while nobody waits.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace tessera::comm {

class Transport {
 public:
  /// A message that has been started. Destroyed before it is done, it is given up: its memory is not touched any more,
  /// and the transport fit for nothing but its destruction.
  struct Message {
    virtual ~Message() = default;
  };

  virtual ~Transport() = default;
  /// tag: 0 or 1.
  virtual std::unique_ptr<Message> send(int host, const std::byte* data, std::int64_t bytes, int tag) = 0;
  virtual std::unique_ptr<Message> receive(int host, std::byte* data, std::int64_t bytes, int tag) = 0;
  /// True when it is done, though its host may have gone since. False when interrupted: ask again. A std::exception
  /// where the connection with its host has broken before, and from send() and receive() too.
  virtual bool wait(Message& message) = 0;
  /// From any thread: a wait() that is going on returns.
  virtual void interrupt() = 0;
  /// What messages call it.
  virtual std::string name() const = 0;
};

/// The ranks that a transport joins.
struct LanePlaces {
  int host = 0;                             // this rank's place
  std::vector<const Descriptor*> controls;  // by host: connections to its rank, silent so far; null: this one
  std::vector<int> ranks;                   // by host
  std::string name, key;                    // of the group; what proves that a rank belongs to the job
  std::string address;                      // of this rank's host, numeric
  std::chrono::milliseconds timeout;
};

/// What makes the transports of a process.
class Engine {
 public:
  virtual ~Engine() = default;
  /// Collective among the lane's ranks. std::exception.
  virtual std::unique_ptr<Transport> connect(const LanePlaces& lane) = 0;
};

/// Collective: each rank shows the others a proof of the job's key. std::exception where one does not.
void prove_lane(Transport& transport, const LanePlaces& lane);

}  // namespace tessera::comm
