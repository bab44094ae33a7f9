#include "comm/rendezvous/own_host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "comm/rendezvous/environment.h"

namespace tessera::comm {

std::string own_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char network[64] = {};
  [[maybe_unused]] const auto n = ::readlink("/proc/self/ns/net", network, sizeof(network) - 1);
  return fmt::format("{}/{}/{}/{}", variable("GROUP_RANK"), variable("SLURM_NODEID"), boot, network);
}

}  // namespace tessera::comm
