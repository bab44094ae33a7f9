#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <atomic>

#include "base/cpu_level.h"
#include "base/open_files.h"
#include "comm/rendezvous/connect_hosts.h"
#include "comm/rendezvous/environment.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

/// Whether all ranks are on this host as far as the launcher has told. Without a word about it they are, unless there
/// is an address to meet at, where they will tell each other.
bool on_one_host(const RankEnvironment& environment) {
  if (environment.local_world_size >= 0) return environment.local_world_size == environment.world_size;
  return variable("MASTER_ADDR").empty();
}

}  // namespace

std::shared_ptr<Communicator> connect(const RendezvousOptions& options) {
  make_products_reproducible();
  allow_all_open_files();  // gloo ends the process where it cannot accept one more connection, strangers' too
  static std::atomic<int> connections{0};  // a process may connect more than once; all ranks do it equally often
  const RankEnvironment environment = read_rank_environment();
  const int size = environment.world_size;
  const std::string& backend = options.backend;
  if (backend != "auto" && backend != "solo" && backend != "shm" && backend != "hosts") {
    throw ConfigError(fmt::format("Unknown communication backend '{}': auto, solo, shm or hosts.", backend), "backend");
  }
  if (backend == "solo" && size > 1) {
    throw ConfigError(fmt::format("The backend 'solo' is a world of one, the environment says {} ranks.", size),
                      "backend");
  }
  if (size == 1 && (backend == "auto" || backend == "solo")) {
    share_cores(at::get_num_threads(), 1);
    return make_solo();
  }
  const auto op_timeout = operation_timeout(options.op_timeout);
  const HostsRendezvous rendezvous{environment, connections++, meeting_timeout(options.init_timeout, op_timeout),
                                   op_timeout};
  const bool one_host = on_one_host(environment);
  if (backend == "shm" && !one_host && environment.local_world_size >= 0) {
    throw ConfigError(fmt::format("The backend 'shm' is for one host, and {} of {} ranks are on this one.",
                                  environment.local_world_size, size),
                      "backend");
  }
  if (backend == "hosts" || (backend == "auto" && !one_host)) return connect_hosts(rendezvous);
  return connect_one_host(environment.rank, size, 0, fmt::format("{}#{}", environment.job_key, rendezvous.connection),
                          rendezvous);
}

}  // namespace tessera::comm
