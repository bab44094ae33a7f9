#include "launch/limits.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

constexpr int kOwnFiles = 64, kOwnProcesses = 3;  // of the launcher, and of what it starts beside the ranks

}  // namespace

Limits own_limits() {
  Limits limits;
  rlimit found{};
  if (::getrlimit(RLIMIT_NOFILE, &found) == 0) limits.open_files = found.rlim_cur;
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_NPROC, &found) == 0) limits.processes = found.rlim_cur;
  return limits;
}

void require_room(int ranks, const OutputOptions& output, const Limits& limits) {
  const auto require = [&](rlim_t needed, rlim_t limit, const char* what, const char* option) {
    if (needed <= limit) return;
    throw ConfigError(fmt::format("{} rank{} on this machine need{} {} {}, and the system allows {} (ulimit {}): raise "
                                  "that limit, or lower --num_processes",
                                  ranks, ranks == 1 ? "" : "s", ranks == 1 ? "s" : "", needed, what, limit, option),
                      "num_processes");
  };
  const auto count = static_cast<rlim_t>(ranks);
  require(count * static_cast<rlim_t>(descriptors_of_rank(output)) + kOwnFiles, limits.open_files, "open files", "-n");
  require(count + kOwnProcesses, limits.processes, "processes", "-u");
}

std::string why_no_process(int error) {
  if (error != EAGAIN) return std::strerror(error);
  rlimit found{};
  ::getrlimit(RLIMIT_NPROC, &found);
  return fmt::format(
      "{}: the system allows this user no more processes and threads (ulimit -u is {}; pids.max of the control group "
      "and kernel.pid_max may be lower): raise that limit, or lower --num_processes",
      std::strerror(error), found.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(found.rlim_cur));
}

}  // namespace tessera::launch
