#pragma once
// The gloo inside libtorch as a Transport: messages between two ranks of a ProcessGroupGloo, nothing else of it.
//
// Note [gloo]
// What it does not do, and who does it here:
//  - it ends the process where a message is longer than what was asked for: the Wire agrees on operations first;
//  - a wait that times out closes all connections: waits have no timeout, interrupt() ends them;
//  - a connection that breaks in the middle of a message leaves that one waiting for ever: for each host there is a
//    receive that nothing is ever sent for, which breaks, too, and is looked at after each interruption;
//  - its rendezvous takes every caller's word: its addresses go through connections that are proven, and each of its
//    own connections must then show a proof of the job's key;
//  - it writes to sockets with SIGPIPE, and to std::cout.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/tcp.h"
#include "comm/hosts/transport.h"

namespace gloo::transport {
class Device;
}

namespace tessera::comm {

/// gloo's listener at this address and its thread; one serves all groups of a process. std::exception.
std::shared_ptr<::gloo::transport::Device> open_gloo(const std::string& numeric_address);

struct GlooLane {
  int host = 0;                             // this rank's place
  std::vector<const Descriptor*> controls;  // by host: connections to its rank, silent so far; null: this one
  std::vector<int> ranks;                   // by host
  std::string name, key;                    // of the group; what proves that a rank belongs to the job
  std::chrono::milliseconds timeout;
};
/// Collective among the lane's ranks. std::exception.
std::unique_ptr<Transport> connect_gloo(std::shared_ptr<::gloo::transport::Device> device, const GlooLane& lane);

}  // namespace tessera::comm
