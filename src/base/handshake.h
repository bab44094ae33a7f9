#pragma once
// The first words on a connection between ranks, or between launchers. Whoever listens sends a challenge; whoever calls
// says who it is and proves with the challenge that it knows the job's key; the listener proves the same with the
// caller's challenge.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/secret.h"
#include "base/tcp.h"

namespace tessera {

/// What a connection is for.
struct Call {
  std::uint64_t name = 0;  // of ranks the hash of the group's
  std::int32_t from = -1, to = -1;
  bool operator==(const Call&) const = default;
  auto operator<=>(const Call&) const = default;
};

/// Of the one who calls, on a connection that has just been made. std::system_error where it breaks (ECONNRESET: the
/// listener closed it) or the time is over; EACCES: the listener cannot prove that it belongs to the job.
void introduce(const Descriptor& socket, const Call& call, const std::string& key, Deadline deadline);

/// The other side, which may have many of these at a time and waits for none.
class Greeting {
 public:
  /// Sends the challenge. `rank`: this one.
  Greeting(Descriptor socket, int rank, Deadline until);

  enum class State { kWaiting, kProven, kRefused };
  /// Takes what has come.
  State receive(const std::string& key);
  const Descriptor& socket() const { return socket_; }
  Deadline until() const { return until_; }
  /// Both after kProven.
  const Call& call() const { return call_; }
  Descriptor take() { return std::move(socket_); }

 private:
  struct Words {
    std::uint64_t magic, name;
    std::int32_t from, reserved;
    Nonce challenge;
    Mac proof;
  };
  friend void introduce(const Descriptor&, const Call&, const std::string&, Deadline);

  Descriptor socket_;
  Deadline until_;
  Nonce challenge_;
  Call call_;
  Words words_{};
  std::size_t taken_ = 0;
  bool told_ = false;
};

}  // namespace tessera
