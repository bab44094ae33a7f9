#pragma once
// Which cores and how many threads each rank gets.
#include <optional>
#include <string>
#include <vector>

#include "config/accelerate.h"

namespace tessera::launch {

struct CoreRequest {
  int ranks = 1;
  std::optional<int> threads_per_rank;        // --num_cpu_threads_per_process
  bool insist = false;                        // --enable_cpu_affinity: too few cores is an error
  std::vector<std::vector<int>> beside = {};  // the CPUs beside each rank's GPU (gpus.h); empty: nothing is known
};

struct CorePlan {
  int threads_per_rank = 1;
  std::vector<std::vector<int>> cpus_of_rank;  // disjoint; empty: ranks are not bound
  std::vector<std::string> warnings;
};

/// `cpus` are the ones this process may use, neighbours sharing caches (see usable_cpus()). With at least one for each
/// rank, the ranks get equal disjoint slices and a thread for each; else they share all, one thread each, with a
/// warning. Where it is known which CPUs lie beside each rank's GPU, and they are enough, a rank's slice is of those.
/// ConfigError names the numbers and the remedy.
CorePlan plan_cores(const CoreRequest& request, const std::vector<int>& cpus);

/// The CPUs of this process's affinity mask, hyper-threads of a core beside each other; fewer where the control group's
/// quota allows only so many.
std::vector<int> usable_cpus();

/// What the OpenMP threads of a process (libtorch's kernels) do while they wait for each other. GNU's library lets them
/// look for milliseconds before they sleep: where other processes want the cores, the threads wait with all their time
/// for one that has none. Nothing where the user has chosen. The library reads it when it is loaded.
config::Environment waiting_environment();

}  // namespace tessera::launch
