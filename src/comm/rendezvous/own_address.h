#pragma once
#include <string>

#include "base/tcp.h"

namespace tessera::comm {

struct OwnAddress {
  std::string listens;  // "": at all addresses
  std::string tells;    // where the others find it
};

/// TESSERA_ADDRESS, else that of the interface TESSERA_SOCKET_IFNAME (else GLOO_SOCKET_IFNAME; a list: the first that
/// has one), else this host's on the way to the meeting place. ConfigError for one that is not this host's.
OwnAddress own_address_for(const Endpoint& meeting_place);

}  // namespace tessera::comm
