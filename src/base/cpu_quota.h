#pragma once
// How much processor time the control groups of this process grant (containers, cluster jobs, systemd's CPUQuota).
#include <string>

namespace tessera {

/// CPUs' worth of time, rounded up; 0: unlimited. Threads beyond that only take time from each other.
int cpu_quota();

/// `membership`: the text of /proc/self/cgroup; `root`: where the control groups are mounted. The narrowest group on
/// the way up counts, of version 2 and of version 1.
int cpu_quota(const std::string& membership, const std::string& root);

}  // namespace tessera
