#include "cli/measured_rates.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/commands.h"
#include "launch/cores.h"
#include "launch/process.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

std::string read_all(int fd) {
  std::string text;
  char piece[256];
  for (ssize_t n; (n = ::read(fd, piece, sizeof piece)) > 0;) text.append(piece, static_cast<std::size_t>(n));
  return text;
}

}  // namespace

estimate::RankRates measured_rates(int ranks, const std::string& mixed_precision) {
  const auto cpus = launch::usable_cpus();
  // More ranks than cores share them evenly: as many as there are cores tell the rate of a core.
  const int measuring = std::min(ranks, static_cast<int>(cpus.size()));
  const auto cores = launch::plan_cores({measuring, std::nullopt, false}, cpus);
  auto environment = launch::waiting_environment();
  environment.emplace_back("OMP_NUM_THREADS", std::to_string(cores.threads_per_rank));
  std::vector<pid_t> pids;
  std::vector<launch::Pipe> pipes;
  for (int rank = 0; rank < measuring; ++rank) {
    auto& pipe = pipes.emplace_back(launch::make_pipe());
    const auto at = static_cast<std::size_t>(rank);
    pids.push_back(
        launch::start({.program = worker_path(),
                       .args = {"tessera", kMeasureRates, "--dtype", mixed_precision == "no" ? "float32" : "bfloat16"},
                       .environment = environment,
                       .cpus = at < cores.cpus_of_rank.size() ? cores.cpus_of_rank[at] : std::vector<int>(),
                       .stdout_fd = pipe.write.get()}));
    pipe.write.reset();
  }
  estimate::RankRates slowest;
  bool failed = false;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    const auto text = read_all(pipes[i].read.get());
    int status = 0;
    ::waitpid(pids[i], &status, 0);
    estimate::RankRates found;
    failed = failed || status != 0 || std::sscanf(text.c_str(), "%lf %lf", &found.flops, &found.memory) != 2;
    if (i == 0 || found.flops < slowest.flops) slowest.flops = found.flops;
    if (i == 0 || found.memory < slowest.memory) slowest.memory = found.memory;
  }
  if (failed)
    throw Error(
        "cannot measure this machine's rates; give --flops_per_rank and --memory_rate_per_rank, for example "
        "200GFLOP/s and 10GB/s");
  const double share = static_cast<double>(measuring) / ranks;
  return {slowest.flops * share, slowest.memory * share};
}

}  // namespace tessera::cli
