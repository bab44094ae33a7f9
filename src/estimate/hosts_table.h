#pragma once
// Step times over numbers of hosts, and where communication begins to cost.
#include <optional>
#include <string>

#include "estimate/plan_request.h"
#include "estimate/step_time.h"

namespace tessera::estimate {

/// A job on so many hosts: `request.hosts` is the largest number, `request.ranks` its ranks.
struct HostsJob {
  std::string name;
  PlanRequest request;
  Rates rates;
  int accumulation = 1;
  bool sync_each_batch = false;
};

/// Of the play at which exposed communication takes more than a twentieth of a step.
struct FirstCost {
  int hosts = 0;
  StepTime time;
};
/// The smallest number of hosts, looked for at 2, 4, 8, ... and then between; nothing: up to `cluster.hosts` there is
/// none.
std::optional<FirstCost> where_communication_costs(const StepShape& shape, const Schedule& schedule,
                                                   const Cluster& cluster);

/// A table with a row for 1, 2, 4, ... hosts and for the largest number, and below it a line for each strategy.
std::string hosts_table(const HostsJob& job, const std::vector<ModelTensor>& tensors);

}  // namespace tessera::estimate
