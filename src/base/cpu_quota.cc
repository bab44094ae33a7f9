#include "base/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

namespace tessera {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// Of one group, without those above it.
double cpus_of(const std::string& folder) {
  std::string quota;
  double period = 0;
  std::ifstream(folder + "/cpu.max") >> quota >> period;
  if (quota.empty()) {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  const double time = std::atof(quota.c_str());  // "max", "-1" and "" grant all
  return time > 0 && period > 0 ? time / period : kUnlimited;
}

double narrowest(const std::string& mount, std::string group) {
  double cpus = cpus_of(mount);
  while (group.size() > 1) {
    cpus = std::min(cpus, cpus_of(mount + group));
    group.resize(group.rfind('/'));
  }
  return cpus;
}

}  // namespace

int cpu_quota(const std::string& membership, const std::string& root) {
  double cpus = kUnlimited;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // "0::/user.slice/x" or "4:cpu,cpuacct:/docker/x"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") cpus = std::min(cpus, narrowest(root, group));
    if (controllers.find(",cpu,") != std::string::npos) cpus = std::min(cpus, narrowest(root + "/cpu", group));
  }
  return cpus == kUnlimited ? 0 : static_cast<int>(std::ceil(cpus));
}

int cpu_quota() {
  std::stringstream membership;
  membership << std::ifstream("/proc/self/cgroup").rdbuf();
  return cpu_quota(membership.str(), "/sys/fs/cgroup");
}

}  // namespace tessera
