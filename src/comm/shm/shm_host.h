#pragma once
// Ranks as processes of one host. They find each other by the names of sockets, exchange memory and handles of their
// processes (pidfd) as descriptors, and leave no trace on the file system.
#include <memory>
#include <string>

#include "comm/shm/fd_socket.h"
#include "comm/shm/host.h"

namespace tessera::comm {

struct ShmRendezvous {
  int rank = 0, size = 1;  // among the processes of this host
  int first_rank = 0;      // what rank 0 of this host is called in messages
  std::string job_key;
  std::chrono::milliseconds timeout{300'000};
  int world_size = 0;  // of all hosts
};

/// What the rendezvous gives to a rank.
struct ShmWorld {
  std::shared_ptr<Host> host;
  std::shared_ptr<SharedRegion> memory;  // of the world's group
  int cores = 1;                         // that any of the ranks may run on
};

/// Collective. CommError after the timeout: says which ranks are missing. std::system_error ENOMEM: the system has no
/// memory for it.
ShmWorld meet_on_this_host(const ShmRendezvous& rendezvous);

}  // namespace tessera::comm
