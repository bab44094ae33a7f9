#pragma once
// Names of hosts and their addresses.
#include <netdb.h>

#include <chrono>
#include <memory>
#include <string>

namespace tessera {

using Deadline = std::chrono::steady_clock::time_point;

struct Endpoint {
  std::string address;  // numeric, or a name
  int port = 0;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Never none. std::system_error names the host, with getaddrinfo's reason.
Addresses look_up(const Endpoint& peer, int socket_type);
/// The same; asks again until `deadline` where the name leads nowhere yet: that of a host that is just starting, or a
/// name server that does not answer.
Addresses look_up_before(const Endpoint& peer, int socket_type, Deadline deadline);

/// The numeric address of a name.
std::string resolve(const std::string& name);
std::string numeric(const sockaddr* address, socklen_t size);
bool is_numeric_address(const std::string& address);
bool is_loopback(const std::string& numeric_address);

}  // namespace tessera
