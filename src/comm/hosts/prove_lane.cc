#include <fmt/format.h>

#include <stdexcept>

#include "base/secret.h"
#include "comm/hosts/transport.h"

namespace tessera::comm {
namespace {

Mac proof(const LanePlaces& lane, int from, int to) {
  return hmac_sha256(lane.key, fmt::format("data\n{}\n{}\n{}", lane.name, lane.ranks[static_cast<std::size_t>(from)],
                                           lane.ranks[static_cast<std::size_t>(to)]));
}

}  // namespace

void prove_lane(Transport& transport, const LanePlaces& lane) {
  const std::size_t hosts = lane.ranks.size();
  std::vector<Mac> mine(hosts), theirs(hosts);
  std::vector<std::unique_ptr<Transport::Message>> messages;
  for (int h = 0; h < static_cast<int>(hosts); ++h) {
    if (h == lane.host) continue;
    const auto place = static_cast<std::size_t>(h);
    mine[place] = proof(lane, lane.host, h);
    messages.push_back(transport.receive(h, reinterpret_cast<std::byte*>(theirs[place].data()), sizeof(Mac), 0));
    messages.push_back(transport.send(h, reinterpret_cast<const std::byte*>(mine[place].data()), sizeof(Mac), 0));
  }
  for (const auto& message : messages) transport.wait(*message);
  for (int h = 0; h < static_cast<int>(hosts); ++h) {
    if (h == lane.host || equal(theirs[static_cast<std::size_t>(h)], proof(lane, h, lane.host))) continue;
    throw std::runtime_error(
        fmt::format("who answers on the connection for data with rank {} does not prove the job's secret",
                    lane.ranks[static_cast<std::size_t>(h)]));
  }
}

}  // namespace tessera::comm
