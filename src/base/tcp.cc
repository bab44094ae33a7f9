#include "base/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/env.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kSocketFlags = SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr int kBacklog = 1024;
constexpr useconds_t kConnectRetryMicroseconds = 50'000;
constexpr std::chrono::seconds kLongestTry{5};
constexpr long kLongestKeepAlive = 3600;

[[noreturn]] void fail_with_errno(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

/// False at the deadline.
bool wait_for(int fd, short events, Deadline deadline) {
  pollfd waiting{fd, events, 0};
  while (true) {
    const int ready = ::poll(&waiting, 1, milliseconds_until(deadline));
    if (ready != 0 && !(ready < 0 && errno == EINTR)) return ready > 0;
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) return false;
  }
}

std::string address_of(const Descriptor& socket, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (ask(socket.get(), generic, &size) != 0) fail_with_errno("the address of a connection");
  const std::string text = numeric(generic, size);
  constexpr std::string_view kIpv4InIpv6 = "::ffff:";
  return text.starts_with(kIpv4InIpv6) ? text.substr(kIpv4InIpv6.size()) : text;
}

void set_option(const Descriptor& socket, int level, int option, int value) {
  if (::setsockopt(socket.get(), level, option, &value, sizeof(value)) != 0) fail_with_errno("setsockopt");
}

Descriptor open_socket(int family) {
  return Descriptor(::socket(family, SOCK_STREAM | kSocketFlags, 0));
}

/// This process, or the system, can open no more.
bool lacks_room(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/// The system may choose the very port that is called as the caller's own, where nobody listens there: then both ends
/// of the connection are this socket.
bool is_its_own_peer(const Descriptor& socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 && own_size == peer_size &&
         std::memcmp(&own, &peer, own_size) == 0;
}

/// Without a rest that would hold the port.
void close_at_once(Descriptor& socket) {
  const linger none{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  socket.reset();
}

/// Those of this process, each by a descriptor of its own.
std::vector<Descriptor> connections_with(const Endpoint& peer) {
  std::vector<Descriptor> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", none)) {
    Descriptor socket(::fcntl(std::atoi(entry.path().filename().c_str()), F_DUPFD_CLOEXEC, 0));
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const bool connected = ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
    // The port lies at the same place in both families.
    if (connected && (address.ss_family == AF_INET || address.ss_family == AF_INET6) &&
        ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port) == peer.port &&
        peer_address(socket) == peer.address)
      found.push_back(std::move(socket));
  }
  return found;
}

/// Where a name has several addresses, one that swallows what is sent there must leave time for the others.
Deadline share_of(const addrinfo* address, Deadline deadline) {
  int left = 0;
  for (const addrinfo* a = address; a != nullptr; a = a->ai_next) ++left;
  const auto now = std::chrono::steady_clock::now();
  return now + std::min<Deadline::duration>((deadline - now) / left, kLongestTry);
}

/// 0 when it is connected, else the reason.
int try_to_connect(const Descriptor& socket, const addrinfo& address, Deadline deadline) {
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

Listener listen_at(const Endpoint& place) {
  const bool everywhere = place.address.empty(), has_ipv6 = open_socket(AF_INET6).get() >= 0;
  // The IPv6 wildcard takes IPv4, too.
  const Addresses addresses =
      look_up({everywhere ? (has_ipv6 ? "::" : "0.0.0.0") : place.address, place.port}, SOCK_STREAM);
  Listener result{open_socket(addresses->ai_family), 0};
  if (result.socket.get() < 0) fail_with_errno("listening for other hosts");
  if (everywhere && has_ipv6) set_option(result.socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (place.port != 0) set_option(result.socket, SOL_SOCKET, SO_REUSEADDR, 1);  // past connections are no hindrance
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::bind(result.socket.get(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(result.socket.get(), kBacklog) != 0 ||
      ::getsockname(result.socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail_with_errno(fmt::format("listening at {} port {}", everywhere ? "all addresses" : place.address, place.port));
  }
  // The port lies at the same place in both families.
  result.port = ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  return result;
}

Descriptor accept_waiting(const Listener& listener) {
  Descriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, kSocketFlags));
  if (socket.get() < 0 && lacks_room(errno)) fail_with_errno("accepting a connection");
  if (socket.get() >= 0) set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  return socket;
}

Descriptor connect_before(const Endpoint& peer, Deadline deadline) {
  while (true) {
    const Addresses addresses = look_up_before(peer, SOCK_STREAM, deadline);
    int error = 0;
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      Descriptor socket = open_socket(a->ai_family);
      if (socket.get() < 0 && lacks_room(errno))
        fail_with_errno(fmt::format("connecting to {} port {}", peer.address, peer.port));
      error = socket.get() < 0 ? errno : try_to_connect(socket, *a, share_of(a, deadline));
      if (error == 0 && is_its_own_peer(socket)) {
        close_at_once(socket);
        error = ECONNREFUSED;
      }
      if (error != 0) continue;
      set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
      return socket;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      fail_with_errno(fmt::format("connecting to {} port {}", peer.address, peer.port), error);
    }
    ::usleep(kConnectRetryMicroseconds);
  }
}

std::string address_towards(const Endpoint& peer) {
  const Addresses addresses = look_up(peer, SOCK_DGRAM);
  std::string found;
  int error = 0;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const Descriptor socket(::socket(a->ai_family, SOCK_DGRAM | kSocketFlags, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    auto* generic = reinterpret_cast<sockaddr*>(&own);
    // Connecting a datagram socket sends nothing; it chooses the route.
    if (socket.get() < 0 || ::connect(socket.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        ::getsockname(socket.get(), generic, &size) != 0) {
      error = errno;
      continue;
    }
    if (found.empty() || a->ai_family == AF_INET) found = numeric(generic, size);
    if (a->ai_family == AF_INET) break;
  }
  if (found.empty()) fail_with_errno(fmt::format("no route to '{}'", peer.address), error);
  return found;
}

std::string listening_address(const Endpoint& meeting_place) {
  const std::string own = address_towards(meeting_place);
  const bool same_elsewhere = meeting_place.address == "localhost" || is_numeric_address(meeting_place.address);
  return is_loopback(own) && !same_elsewhere ? "" : own;
}

std::string peer_address(const Descriptor& socket) {
  return address_of(socket, &::getpeername);
}

std::string own_address(const Descriptor& socket) {
  return address_of(socket, &::getsockname);
}

void keep_alive(const Descriptor& socket, std::chrono::seconds time) {
  const int seconds = static_cast<int>(time.count()), probes = std::clamp(seconds - 1, 1, 4);
  const int interval = std::max(1, seconds / (probes + 1));
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, probes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);  // where something is on its way
}

void keep_alive_towards(const Endpoint& peer, std::chrono::seconds time) {
  for (const Descriptor& socket : connections_with(peer)) keep_alive(socket, time);
}

void shut_down_towards(const Endpoint& peer) {
  for (const Descriptor& socket : connections_with(peer)) ::shutdown(socket.get(), SHUT_RDWR);
}

std::chrono::seconds keep_alive_time() {
  const std::string text = environment("TESSERA_KEEPALIVE_S").value_or("5");
  char* end = nullptr;
  const long seconds = std::strtol(text.c_str(), &end, 10);
  if (*end != 0 || seconds < 1 || seconds > kLongestKeepAlive) {
    throw ConfigError(
        fmt::format("TESSERA_KEEPALIVE_S must be whole seconds, 1 to {}, it is '{}'", kLongestKeepAlive, text),
        "TESSERA_KEEPALIVE_S");
  }
  return std::chrono::seconds(seconds);
}

std::vector<Interface> interfaces_of_host() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) fail_with_errno("the interfaces of this host");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  std::vector<Interface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family || (one->ifa_flags & IFF_UP) == 0) continue;
      const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr)) continue;
      if (std::any_of(found.begin(), found.end(), [&](const Interface& f) { return f.name == one->ifa_name; }))
        continue;
      found.push_back(
          {one->ifa_name, numeric(one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6))});
    }
  }
  return found;
}

void send_all(const Descriptor& socket, const void* data, std::size_t size, Deadline deadline) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::send(socket.get(), bytes, size, MSG_NOSIGNAL);
    if (n > 0) {
      bytes += n;
      size -= static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      if (!wait_for(socket.get(), POLLOUT, deadline)) fail_with_errno("sending", ETIMEDOUT);
    } else if (errno != EINTR) {
      fail_with_errno("sending");
    }
  }
}

void receive_all(const Descriptor& socket, void* data, std::size_t size, Deadline deadline) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::recv(socket.get(), bytes, size, 0);
    if (n > 0) {
      bytes += n;
      size -= static_cast<std::size_t>(n);
    } else if (n == 0) {
      fail_with_errno("receiving", ECONNRESET);
    } else if (errno == EAGAIN) {
      if (!wait_for(socket.get(), POLLIN, deadline)) fail_with_errno("receiving", ETIMEDOUT);
    } else if (errno != EINTR) {
      fail_with_errno("receiving");
    }
  }
}

}  // namespace tessera
