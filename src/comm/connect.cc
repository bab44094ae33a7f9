#include <fmt/format.h>

#include <atomic>
#include <cstdlib>

#include "comm/group_communicator.h"
#include "comm/rank_environment.h"
#include "comm/shm_host.h"

namespace tessera::comm {
namespace {

constexpr int kMaxRanks = 250;  // descriptors in one message

std::chrono::milliseconds operation_timeout(const RendezvousOptions& options) {
  const char* text = std::getenv("TESSERA_COMM_TIMEOUT_S");
  if (text == nullptr || *text == 0) return options.op_timeout;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != 0 || !(seconds > 0) || seconds > 1e9) {
    throw ConfigError(fmt::format("TESSERA_COMM_TIMEOUT_S must be a positive number of seconds, it is '{}'.", text),
                      "TESSERA_COMM_TIMEOUT_S");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

void check_one_host(const RankEnvironment& environment) {
  const int local = environment.local_world_size;
  if (local >= 0 && local != environment.world_size) {
    throw ConfigError(
        fmt::format("{} of {} ranks are on this host (by {}'s variables): ranks on another host are not supported. "
                    "Start all ranks on one host.",
                    local, environment.world_size, environment.family),
        "WORLD_SIZE");
  }
  if (environment.world_size > kMaxRanks) {
    throw ConfigError(fmt::format("{} ranks on one host, at most {} are supported.", environment.world_size, kMaxRanks),
                      "WORLD_SIZE");
  }
}

}  // namespace

std::shared_ptr<Communicator> connect(const RendezvousOptions& options) {
  static std::atomic<int> connections{0};  // a process may connect more than once; all ranks do it equally often
  const RankEnvironment environment = read_rank_environment();
  const int size = environment.world_size;
  if (options.backend != "auto" && options.backend != "solo" && options.backend != "shm") {
    throw ConfigError(fmt::format("Unknown communication backend '{}': auto, solo or shm.", options.backend),
                      "backend");
  }
  if (options.backend == "solo" && size > 1) {
    throw ConfigError(fmt::format("The backend 'solo' is a world of one, the environment says {} ranks.", size),
                      "backend");
  }
  if (size == 1 && options.backend != "shm") return make_solo();
  check_one_host(environment);
  ShmRendezvous rendezvous{environment.rank, size, fmt::format("{}#{}", environment.job_key, connections++),
                           options.init_timeout};
  ShmWorld world = meet_on_this_host(rendezvous);
  std::vector<int> members;
  for (int r = 0; r < size; ++r) members.push_back(r);
  return std::make_shared<GroupCommunicator>(std::make_unique<Group>(std::move(world.host), std::move(world.memory),
                                                                     std::move(members), environment.rank,
                                                                     operation_timeout(options)));
}

}  // namespace tessera::comm
