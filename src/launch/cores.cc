#include "launch/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
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

/// Slices of the cores beside the ranks' GPUs, equal among ranks that have the same ones there. Nothing where a rank
/// would have fewer than its threads, or where groups of cores overlap.
std::optional<std::vector<std::vector<int>>> slices_beside(const CoreRequest& request, const std::vector<int>& cpus) {
  if (request.beside.size() != static_cast<std::size_t>(request.ranks)) return std::nullopt;
  std::map<std::vector<int>, std::vector<std::size_t>> ranks_by_cpus;
  for (std::size_t r = 0; r < request.beside.size(); ++r) {
    const std::set<int> near(request.beside[r].begin(), request.beside[r].end());
    std::vector<int> usable;
    std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(usable), [&](int cpu) { return near.contains(cpu); });
    ranks_by_cpus[usable].push_back(r);
  }
  std::vector<std::vector<int>> slices(request.beside.size());
  std::set<int> taken;
  for (const auto& [usable, ranks] : ranks_by_cpus) {
    const auto share = usable.size() / ranks.size();
    if (share < static_cast<std::size_t>(request.threads_per_rank.value_or(1))) return std::nullopt;
    for (const int cpu : usable)
      if (!taken.insert(cpu).second) return std::nullopt;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      slices[ranks[i]].assign(usable.begin() + static_cast<std::ptrdiff_t>(i * share),
                              usable.begin() + static_cast<std::ptrdiff_t>((i + 1) * share));
  }
  return slices;
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
  if (auto slices = slices_beside(request, cpus)) {
    const auto fewest = std::min_element(slices->begin(), slices->end(),
                                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
    plan.threads_per_rank = request.threads_per_rank.value_or(static_cast<int>(fewest->size()));
    plan.cpus_of_rank = std::move(*slices);
    return plan;
  }
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
