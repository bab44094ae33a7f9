#pragma once
// One rank's connections to ranks on other hosts.
#include <memory>
#include <string>
#include <vector>

#include "base/reception.h"
#include "comm/hosts/transport.h"

namespace tessera::comm {

/// What joins the ranks of one lane: by host a connection to its rank for control, and a transport for data.
struct Lane {
  std::vector<Descriptor> controls;
  std::unique_ptr<Transport> transport;
};

class Network {
 public:
  struct Times {
    std::chrono::milliseconds connecting;
    std::chrono::seconds keep_alive;
  };
  /// `peers`: where each rank of the world listens; `key`: what the ranks of the job know and nobody else.
  Network(Listener listener, std::vector<Endpoint> peers, int rank, std::string key, Times times,
          std::unique_ptr<Engine> engine);

  /// Collective among `ranks`, one of each host, with the same `name`, which is new for them. CommError names the peer.
  Lane open_lane(const std::vector<int>& ranks, const std::string& name);

 private:
  Descriptor open(int peer, const std::string& name);
  Descriptor call(const Call& call, Deadline deadline) const;
  /// Where this rank's engine listens.
  std::string data_address(const Lane& lane) const;

  Reception reception_;
  std::vector<Endpoint> peers_;
  int rank_;
  std::string key_;
  Times times_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tessera::comm
