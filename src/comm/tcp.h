#pragma once
// TCP connections to ranks on other hosts. Numeric addresses are IPv4 or IPv6; sockets are non-blocking.
#include <chrono>
#include <string>

#include "comm/fd_socket.h"

namespace tessera::comm {

using Deadline = std::chrono::steady_clock::time_point;

struct Endpoint {
  std::string address;  // numeric, or a name
  int port = 0;
};

struct Listener {
  Descriptor socket;
  int port = 0;  // chosen by the system
};
/// On all addresses of this host. Throws std::system_error, as all here do.
Listener listen_on_any_port();

/// The next connection, or none (get() == -1) when `deadline` has passed.
Descriptor accept_before(const Listener& listener, Deadline deadline);

/// Connects; tries again while nobody listens there, until `deadline`.
Descriptor connect_before(const Endpoint& peer, Deadline deadline);

/// This host's address on the way to `peer`.
std::string address_towards(const Endpoint& peer);
/// The numeric address of a name.
std::string resolve(const std::string& name);
bool is_loopback(const std::string& numeric_address);

/// A connection on which nothing is on its way breaks within some seconds after the other host has gone without a word.
void keep_alive(const Descriptor& socket);

/// All of it, or std::system_error when the deadline passes or the connection breaks.
void send_all(const Descriptor& socket, const void* data, std::size_t size, Deadline deadline);
void receive_all(const Descriptor& socket, void* data, std::size_t size, Deadline deadline);

}  // namespace tessera::comm
