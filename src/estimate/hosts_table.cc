#include "estimate/hosts_table.h"

#include <fmt/format.h>

#include "base/quantity_text.h"
#include "estimate/rate_text.h"
#include "estimate/table.h"

namespace tessera::estimate {
namespace {

using config::ShardingStrategy;

struct NamedStrategy {
  const char* name;
  ShardingStrategy strategy;
};
constexpr NamedStrategy kStrategies[] = {{"FULL_SHARD", ShardingStrategy::kFullShard},
                                         {"SHARD_GRAD_OP", ShardingStrategy::kShardGradOp},
                                         {"HYBRID_SHARD", ShardingStrategy::kHybridShard},
                                         {"NO_SHARD", ShardingStrategy::kNoShard}};

std::vector<int> rows_up_to(int hosts) {
  std::vector<int> rows;
  for (int h = 1; h < hosts; h *= 2) rows.push_back(h);
  rows.push_back(hosts);
  return rows;
}

std::string memory_text(PlanRequest request, const std::vector<ModelTensor>& tensors) {
  return bytes_text(plan_for(request, tensors).held());
}

std::string unit_text(const StepShape& shape, int unit) {
  return unit == 0 ? "the root" : "'" + shape.blocks[static_cast<std::size_t>(unit - 1)].name + "'";
}

std::string cost_line(const char* name, const StepShape& shape, const std::optional<FirstCost>& first, int hosts) {
  if (!first) return fmt::format("{}: up to {} hosts computation hides communication\n", name, hosts);
  const auto& t = first->time;
  std::string line = fmt::format("{}: from {} hosts on communication costs: {} of a step of {}", name, first->hosts,
                                 duration_text(t.exposed), duration_text(t.seconds));
  if (t.longest.seconds > 0)
    line += fmt::format("; the longest wait, {}, is for the {} of {}", duration_text(t.longest.seconds),
                        t.longest.operation, unit_text(shape, t.longest.unit));
  return line + "\n";
}

}  // namespace

std::optional<FirstCost> where_communication_costs(const StepShape& shape, const Schedule& schedule,
                                                   const Cluster& cluster) {
  constexpr double kNoticed = 0.05;
  const auto cost_at = [&](int hosts) -> std::optional<FirstCost> {
    const auto time = play_step(shape, schedule, {hosts, cluster.ranks, cluster.rates});
    if (time.exposed <= kNoticed * time.seconds) return std::nullopt;
    return FirstCost{hosts, time};
  };
  int free = 1;
  for (const int row : rows_up_to(cluster.hosts)) {
    if (row == 1 || !cost_at(row)) {
      free = row;
      continue;
    }
    for (int hosts = free + 1;; ++hosts)
      if (const auto first = cost_at(hosts)) return first;
  }
  return std::nullopt;
}

std::string hosts_table(const HostsJob& job, const std::vector<ModelTensor>& tensors) {
  const auto shape = step_shape(job.request, tensors);
  const Cluster largest{job.request.hosts, job.request.ranks / job.request.hosts, job.rates};
  std::vector<std::string> header = {"hosts", "ranks"};
  for (const auto& s : kStrategies) header.emplace_back(s.name);
  std::vector<std::vector<std::string>> rows;
  double computed = 0;
  for (const int hosts : rows_up_to(largest.hosts)) {
    auto request = job.request;
    request.hosts = hosts;
    request.ranks = hosts * largest.ranks;
    request.batch.accumulation = accumulation_of(job.accumulation, job.sync_each_batch, request.ranks);
    auto& row = rows.emplace_back(std::vector{std::to_string(hosts), std::to_string(request.ranks)});
    for (const auto& s : kStrategies) {
      request.strategy = s.strategy;
      const auto time =
          play_step(shape, {s.strategy, job.accumulation, job.sync_each_batch}, {hosts, largest.ranks, job.rates});
      if (s.strategy == ShardingStrategy::kFullShard) computed = time.computed;
      row.push_back(fmt::format("{}, {}", duration_text(time.seconds), memory_text(request, tensors)));
    }
  }
  std::string out = framed_table(fmt::format("A step, and the peak of a rank: {}", job.name), header, rows);
  const auto flops = step_flops(shape) * job.accumulation;
  out += fmt::format("a rank computes {} a step: {} under FULL_SHARD on {} hosts\n", rate_text(flops, "FLOP"),
                     duration_text(computed), largest.hosts);
  if (largest.hosts == 1) return out;
  for (const auto& s : kStrategies) {
    const Schedule schedule{s.strategy, job.accumulation, job.sync_each_batch};
    out += cost_line(s.name, shape, where_communication_costs(shape, schedule, largest), largest.hosts);
  }
  return out;
}

}  // namespace tessera::estimate
