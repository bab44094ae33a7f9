#include "comm/network.h"

#include <fmt/format.h>

#include <system_error>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::uint64_t kHelloMagic = 0x3177656e65737354;
constexpr std::chrono::seconds kHelloTime{2};  // a stranger who says nothing holds up the others no longer

/// FNV-1a: the same on every host.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

struct Network::Hello {
  std::uint64_t magic, name;
  JobSecret secret;
  std::int32_t from;
  Purpose purpose;
};

Network::Network(Listener listener, std::vector<Endpoint> peers, int rank, JobSecret secret,
                 std::chrono::milliseconds timeout)
    : listener_(std::move(listener)), peers_(std::move(peers)), rank_(rank), secret_(secret), timeout_(timeout) {}

// The rank with the higher number calls.
Connection Network::open(int peer, const std::string& name) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout_;
  const std::uint64_t hash = hash_of(name);
  try {
    Connection connection;
    for (const Purpose purpose : {Purpose::kData, Purpose::kLife}) {
      Descriptor& socket = purpose == Purpose::kData ? connection.data : connection.life;
      socket = rank_ > peer ? call(peer, hash, purpose, deadline) : await_call(peer, hash, purpose, deadline);
    }
    keep_alive(connection.life);
    return connection;
  } catch (const std::system_error& error) {
    const Endpoint& place = peers_[static_cast<std::size_t>(peer)];
    throw CommError(
        fmt::format("rank {}: connect: no connection with rank {}, which listens at {} port {}: {}. Hosts must be able "
                    "to reach each other at any port; look at that rank's output, too.",
                    rank_, peer, place.address, place.port, error.what()),
        peer, "connect", 0);
  }
}

Descriptor Network::call(int peer, std::uint64_t name, Purpose purpose, Deadline deadline) const {
  Descriptor socket = connect_before(peers_[static_cast<std::size_t>(peer)], deadline);
  const Hello hello{kHelloMagic, name, secret_, rank_, purpose};
  send_all(socket, &hello, sizeof(hello), deadline);
  return socket;
}

Descriptor Network::await_call(int peer, std::uint64_t name, Purpose purpose, Deadline deadline) {
  const Key wanted{name, peer, purpose};
  while (true) {
    if (const auto found = called_.find(wanted); found != called_.end()) {
      Descriptor socket = std::move(found->second);
      called_.erase(found);
      return socket;
    }
    Descriptor socket = accept_before(listener_, deadline);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::system_error(ETIMEDOUT, std::generic_category(), "waiting for its call");
    }
    if (socket.get() < 0) continue;
    Hello hello{};
    try {
      receive_all(socket, &hello, sizeof(hello), std::chrono::steady_clock::now() + kHelloTime);
    } catch (const std::system_error&) {
      continue;
    }
    if (hello.magic != kHelloMagic || hello.secret != secret_) continue;
    called_[{hello.name, hello.from, hello.purpose}] = std::move(socket);
  }
}

}  // namespace tessera::comm
