#include "comm/hosts/network.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>

#include "base/plain_reason.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kRefusedLong{5};  // a listener that is overrun by strangers turns ranks away, too
constexpr useconds_t kCallAgainMicroseconds = 50'000;

/// FNV-1a: the same on every host.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

Network::Network(Listener listener, std::vector<Endpoint> peers, int rank, std::string key, Times times,
                 std::unique_ptr<Engine> engine)
    : reception_(std::move(listener), rank, static_cast<int>(peers.size()), key),
      peers_(std::move(peers)),
      rank_(rank),
      key_(std::move(key)),
      times_(times),
      engine_(std::move(engine)) {}

Lane Network::open_lane(const std::vector<int>& ranks, const std::string& name) {
  Lane lane;
  LanePlaces places{.host = 0,
                    .controls = {},
                    .ranks = ranks,
                    .name = name,
                    .key = key_,
                    .address = "",
                    .timeout = times_.connecting};
  for (const int rank : ranks) {
    if (rank == rank_) places.host = static_cast<int>(lane.controls.size());
    lane.controls.push_back(rank == rank_ ? Descriptor() : open(rank, name));
  }
  for (const Descriptor& control : lane.controls) places.controls.push_back(control.get() < 0 ? nullptr : &control);
  try {
    places.address = data_address(lane);
    lane.transport = engine_->connect(places);
    prove_lane(*lane.transport, places);
  } catch (const std::exception& error) {
    throw CommError(fmt::format("rank {}: connect: no connections for data with the other hosts' ranks ({}): {}. Hosts "
                                "must be able to reach each other at any port; look at the other ranks' output, too.",
                                rank_, fmt::join(ranks, ", "), plain_reason(error)),
                    -1, "connect", 0);
  }
  return lane;
}

std::string Network::data_address(const Lane& lane) const {
  const std::string& listens = peers_[static_cast<std::size_t>(rank_)].address;
  if (!is_loopback(listens)) return listens;
  // The name of this host may lead to the loopback here: a connection knows better.
  const auto first =
      std::find_if(lane.controls.begin(), lane.controls.end(), [](const auto& c) { return c.get() >= 0; });
  return own_address(*first);
}

// The rank with the higher number calls. It waits only for ranks with lower ones, and these take calls while they wait
// for theirs; so they do not wait for each other in a circle.
Descriptor Network::open(int peer, const std::string& name) {
  const Deadline deadline = steady_clock::now() + times_.connecting;
  const bool calls = rank_ > peer;
  const Call what{hash_of(name), calls ? rank_ : peer, calls ? peer : rank_};
  try {
    Descriptor socket = calls ? call(what, deadline) : reception_.await(what, deadline);
    keep_alive(socket, times_.keep_alive);
    return socket;
  } catch (const std::system_error& error) {
    const Endpoint& place = peers_[static_cast<std::size_t>(peer)];
    throw CommError(
        fmt::format("rank {}: connect: no connection with rank {}, which listens at {} port {}: {}. Hosts must be able "
                    "to reach each other at any port; look at that rank's output, too.",
                    rank_, peer, place.address, place.port, error.what()),
        peer, "connect", 0);
  }
}

Descriptor Network::call(const Call& call, Deadline deadline) const {
  std::optional<Deadline> patience;
  while (true) {
    Descriptor socket = connect_before(peers_[static_cast<std::size_t>(call.to)], deadline);
    try {
      introduce(socket, call, key_, deadline);
      return socket;
    } catch (const std::system_error& error) {
      const bool turned_away = error.code() == std::errc::connection_reset || error.code() == std::errc::broken_pipe;
      const auto now = steady_clock::now();
      if (!patience) patience = std::min<Deadline>(deadline, now + kRefusedLong);
      if (!turned_away || now >= *patience) throw;
    }
    ::usleep(kCallAgainMicroseconds);
  }
}

}  // namespace tessera::comm
