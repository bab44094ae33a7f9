#pragma once
// One rank's connections to ranks on other hosts.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "comm/tcp.h"

namespace tessera::comm {

/// Two connections to one peer. What the group's operations move goes through `data`; `life` is silent while all is
/// well, so that the system notices within seconds when the other host is gone, and carries a rank's last words.
struct Connection {
  Descriptor data, life;
};

/// Random, agreed upon in the rendezvous: connections of strangers are dropped.
using JobSecret = std::array<std::uint8_t, 16>;

class Network {
 public:
  /// `peers`: where each rank of the world listens.
  Network(Listener listener, std::vector<Endpoint> peers, int rank, JobSecret secret,
          std::chrono::milliseconds timeout);

  /// Both ranks call it with the same `name`, which is new for this pair. CommError names the peer.
  Connection open(int peer, const std::string& name);

 private:
  enum class Purpose : std::int32_t { kData, kLife };
  struct Hello;
  using Key = std::tuple<std::uint64_t, int, Purpose>;  // hash of the name, from whom, what for

  Descriptor call(int peer, std::uint64_t name, Purpose purpose, Deadline deadline) const;
  Descriptor await_call(int peer, std::uint64_t name, Purpose purpose, Deadline deadline);

  Listener listener_;
  std::vector<Endpoint> peers_;
  int rank_;
  JobSecret secret_;
  std::chrono::milliseconds timeout_;
  std::map<Key, Descriptor> called_;  // accepted before they were asked for
};

}  // namespace tessera::comm
