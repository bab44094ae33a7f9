#pragma once
// One rank's connections to ranks on other hosts.
#include <string>
#include <vector>

#include "comm/hosts/tcp.h"
#include "comm/rendezvous/reception.h"

namespace tessera::comm {

/// Two connections to one peer. What the group's operations move goes through `data`; `life` is silent while all is
/// well, so that the system notices within seconds when the other host is gone, and carries a rank's last words.
struct Connection {
  Descriptor data, life;
};

class Network {
 public:
  /// `peers`: where each rank of the world listens; `key`: what the ranks of the job know and nobody else.
  Network(Listener listener, std::vector<Endpoint> peers, int rank, std::string key, std::chrono::milliseconds timeout);

  /// Both ranks call it with the same `name`, which is new for this pair. CommError names the peer.
  Connection open(int peer, const std::string& name);

 private:
  Descriptor call(const Call& call, Deadline deadline) const;

  Reception reception_;
  std::vector<Endpoint> peers_;
  int rank_;
  std::string key_;
  std::chrono::milliseconds timeout_;
};

}  // namespace tessera::comm
