#pragma once
// TCP connections to other hosts. Numeric addresses are IPv4 or IPv6; sockets are non-blocking.
#include <chrono>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/host_name.h"

namespace tessera {

struct Listener {
  Descriptor socket;
  int port = 0;  // chosen by the system
};
/// At this numeric address ("": all of this host's), at any port (0) or this one. Throws std::system_error, as all here
/// do.
Listener listen_at(const Endpoint& place);

/// The next connection that is waiting, or none (get() == -1). std::system_error where no descriptor or memory is left
/// for one: then it waits on.
Descriptor accept_waiting(const Listener& listener);

/// Connects; tries again while nobody listens there, or the name leads nowhere, until `deadline`. At once
/// std::system_error where no descriptor is left.
Descriptor connect_before(const Endpoint& peer, Deadline deadline);

/// This host's address on the way to `peer`; of two families IPv4.
std::string address_towards(const Endpoint& peer);
/// Where a rank listens that the others find by way of `meeting_place`: at its address on the way there. At all of them
/// ("") where the name of the meeting place leads to the loopback here, but not elsewhere: it is the name of this host.
std::string listening_address(const Endpoint& meeting_place);
/// The numeric addresses at the other end, and at this one.
std::string peer_address(const Descriptor& socket);
std::string own_address(const Descriptor& socket);

/// What poll() wants.
int milliseconds_until(Deadline deadline);

/// The connection breaks about this long after the other host has gone without a word.
void keep_alive(const Descriptor& socket, std::chrono::seconds time);
/// The same for all connections of this process with `peer`, whose address is numeric: libraries do not give theirs.
void keep_alive_towards(const Endpoint& peer, std::chrono::seconds time);
/// Ends them, so that no thread waits for what comes there.
void shut_down_towards(const Endpoint& peer);
/// That of hosts: TESSERA_KEEPALIVE_S (5). ConfigError for what is no such time.
std::chrono::seconds keep_alive_time();

/// Those that are up, with an address that is not local to a link: of one with several the first, IPv4 before IPv6.
struct Interface {
  std::string name, address;
};
std::vector<Interface> interfaces_of_host();

/// All of it, or std::system_error when the deadline passes or the connection breaks.
void send_all(const Descriptor& socket, const void* data, std::size_t size, Deadline deadline);
void receive_all(const Descriptor& socket, void* data, std::size_t size, Deadline deadline);

}  // namespace tessera
