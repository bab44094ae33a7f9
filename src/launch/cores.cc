#include "launch/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <tuple>

#include "base/cpu_quota.h"
#include "base/env.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

/// Looks at a barrier before a thread sleeps: docs/benchmarks.md has what others cost, on an idle and a busy machine.
constexpr int kSpins = 3'000;

int read_topology(int cpu, const char* what) {
  int value = 0;
  std::ifstream(fmt::format("/sys/devices/system/cpu/cpu{}/topology/{}", cpu, what)) >> value;
  return value;
}

}  // namespace

std::vector<int> usable_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof(mask), &mask) != 0) return {0};
  std::vector<std::tuple<int, int, int>> sorted;  // package, core, cpu
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    sorted.emplace_back(read_topology(cpu, "physical_package_id"), read_topology(cpu, "core_id"), cpu);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> cpus;
  for (const auto& [package, core, cpu] : sorted) cpus.push_back(cpu);
  const int quota = cpu_quota();
  if (quota > 0 && static_cast<std::size_t>(quota) < cpus.size()) cpus.resize(static_cast<std::size_t>(quota));
  return cpus;
}

CorePlan plan_cores(const CoreRequest& request, const std::vector<int>& cpus) {
  const int cores = static_cast<int>(cpus.size()), ranks = request.ranks;
  if (request.threads_per_rank && *request.threads_per_rank < 1) {
    throw ConfigError(
        fmt::format("--num_cpu_threads_per_process must be at least 1, found {}", *request.threads_per_rank),
        "num_cpu_threads_per_process");
  }
  CorePlan plan;
  const int share = std::max(1, cores / ranks);
  plan.threads_per_rank = request.threads_per_rank.value_or(share);
  const bool fits = static_cast<long>(plan.threads_per_rank) * ranks <= cores;
  if (!fits && request.insist) {
    throw ConfigError(
        fmt::format("{} ranks with {} threads each need {} cores, and {} are available; lower --num_processes or "
                    "--num_cpu_threads_per_process, or leave out --enable_cpu_affinity",
                    ranks, plan.threads_per_rank, static_cast<long>(plan.threads_per_rank) * ranks, cores),
        "enable_cpu_affinity");
  }
  if (!fits) {
    plan.warnings.push_back(
        fmt::format("{} ranks with {} thread(s) each share {} core(s): expect them to wait for each other", ranks,
                    plan.threads_per_rank, cores));
    return plan;
  }
  for (int r = 0; r < ranks; ++r)
    plan.cpus_of_rank.emplace_back(cpus.begin() + r * share, cpus.begin() + (r + 1) * share);
  return plan;
}

config::Environment waiting_environment() {
  const auto is_set = [](const char* name) { return environment(name).has_value(); };
  if (is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT")) return {};
  return {{"GOMP_SPINCOUNT", std::to_string(kSpins)}};
}

}  // namespace tessera::launch
