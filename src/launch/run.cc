#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/log.h"
#include "base/secret.h"
#include "base/tcp.h"
#include "launch/console.h"
#include "launch/gpus.h"
#include "launch/launch.h"
#include "launch/machines.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

/// A port of this machine that nobody listens on now.
int free_port() {
  const Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd.get() < 0 || ::bind(fd.get(), generic, size) != 0 || ::getsockname(fd.get(), generic, &size) != 0) {
    throw Error("no free port for the ranks' rendezvous; give one with --main_process_port");
  }
  return ntohs(address.sin_port);
}

constexpr const char* kRunId = "TORCHELASTIC_RUN_ID";
constexpr const char* kRunIdStart = "tessera-";

/// Tells launches on one machine apart.
std::string run_id() {
  return fmt::format("{}{}", kRunIdStart, ::getpid());
}

/// Machines must agree on it without a word.
int rendezvous_port(const config::AccelerateConfig& accelerate) {
  constexpr int kTorchrunsPort = 29500;
  if (accelerate.main_process_port != 0) return accelerate.main_process_port;
  return accelerate.num_machines > 1 ? kTorchrunsPort : free_port();
}

std::vector<Command> commands_of(const LaunchPlan& plan, int restart) {
  const int port = rendezvous_port(plan.accelerate);
  std::vector<Command> commands;
  for (int rank = 0; rank < ranks_here(plan.accelerate); ++rank) {
    Command command;
    command.program = plan.program;
    command.args = plan.args;
    command.environment = rank_environment(plan, rank, port, restart);
    if (!plan.cores.cpus_of_rank.empty()) command.cpus = plan.cores.cpus_of_rank[static_cast<std::size_t>(rank)];
    commands.push_back(std::move(command));
  }
  return commands;
}

std::string without_label(const std::string& line) {
  const std::string label = "tessera error: ";
  return line.starts_with(label) ? line.substr(label.size()) : line;
}

void report_failure(const LaunchPlan& plan, const Outcome& outcome) {
  const int others = ranks_here(plan.accelerate) - 1, rank = outcome.failure->rank;
  // As the rank said it: its own "tessera error: " is not said again.
  for (const std::string& line : outcome.last_lines) log_error(fmt::format("[rank {}]: {}", rank, without_label(line)));
  log_error(fmt::format(
      "rank {} failed with {}{}", rank, describe(*outcome.failure),
      others == 0 ? "" : fmt::format("; the other {} ended with it", others == 1 ? "rank was" : "ranks were")));
}

/// Nothing where no other machine is to start again with this one.
std::unique_ptr<Machines> meet_machines(const LaunchPlan& plan) {
  const config::AccelerateConfig& a = plan.accelerate;
  if (a.num_machines == 1 || plan.options.max_restarts == 0) return nullptr;
  // Of machines that the network has cut off ranks notice it by the silence, and then end.
  constexpr std::chrono::seconds kToEndRanks{10};
  Machines::Times times;
  times.keep_alive = keep_alive_time();
  times.lost = kToEndRanks + times.keep_alive;
  return std::make_unique<Machines>(
      Machines::Place{{a.main_process_ip, rendezvous_port(a)}, a.num_machines, a.machine_rank, job_secret()}, times);
}

/// Machines that have gone take their ranks with them; the others close up.
void close_up(const LaunchPlan& plan, const std::vector<int>& machines, LaunchPlan& now) {
  const config::AccelerateConfig& a = plan.accelerate;
  const auto own = std::find(machines.begin(), machines.end(), a.machine_rank);
  now.accelerate.machine_rank = static_cast<int>(own - machines.begin());
  now.accelerate.num_machines = static_cast<int>(machines.size());
  now.accelerate.num_processes = ranks_here(a) * now.accelerate.num_machines;
}

std::string where(const LaunchPlan& plan, const std::vector<int>& machines) {
  return fmt::format(": {} on machine{} {}", ranks_here(plan.accelerate) * static_cast<int>(machines.size()),
                     machines.size() == 1 ? "" : "s", fmt::join(machines, ", "));
}

/// Where output goes nowhere any more (the other end of a pipe has closed, a file may not grow), the ranks must not go
/// with it. Blocked, not ignored: ranks begin with nothing blocked.
void outlive_output() {
  sigset_t lost;
  sigemptyset(&lost);
  for (const int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&lost, signal);
  ::sigprocmask(SIG_BLOCK, &lost, nullptr);
}

}  // namespace

config::Environment rank_environment(const LaunchPlan& plan, int local_rank, int port, int restart) {
  config::Environment env = config::to_environment(plan.accelerate);
  if (!plan.names_mixed_precision) {
    std::erase_if(env, [](const auto& variable) { return variable.first == "ACCELERATE_MIXED_PRECISION"; });
  }
  const auto set = [&env](const char* name, const auto& value) { env.emplace_back(name, fmt::format("{}", value)); };
  const int world = plan.accelerate.num_processes, local_world = ranks_here(plan.accelerate);
  const int rank = plan.accelerate.machine_rank * local_world + local_rank;
  set("RANK", rank);
  set("LOCAL_RANK", local_rank);
  set("WORLD_SIZE", world);
  set("LOCAL_WORLD_SIZE", local_world);
  set("GROUP_RANK", plan.accelerate.machine_rank);
  set("GROUP_WORLD_SIZE", plan.accelerate.num_machines);
  set("ROLE_RANK", rank);
  set("ROLE_WORLD_SIZE", world);
  set("ROLE_NAME", plan.options.role);
  set("MASTER_ADDR", plan.accelerate.main_process_ip);
  set("MASTER_PORT", port);
  set(kRunId, run_id());
  set("TORCHELASTIC_RESTART_COUNT", restart);
  set("TORCHELASTIC_MAX_RESTARTS", plan.options.max_restarts);
  set("OMP_NUM_THREADS", plan.cores.threads_per_rank);
  for (const auto& [name, value] : waiting_environment()) set(name.c_str(), value);
  const auto& gpus = plan.accelerate.gpu_ids;
  if (gpus && *gpus != "all") set("CUDA_VISIBLE_DEVICES", *gpus);
  return env;
}

bool is_launched() {
  const char* id = std::getenv(kRunId);
  return id != nullptr && std::string_view(id).starts_with(kRunIdStart);
}

int run_launch(const LaunchPlan& plan) {
  SupervisorOptions options;
  options.output = output_of(plan.options);
  if (const auto& seconds = plan.options.grace_period) {
    options.signal_grace = std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
  }
  // CUDA cannot be taken along through fork, and a library may have begun with it.
  options.fork_ranks = plan.is_task && ranks_here(plan.accelerate) > 1 && !has_gpu();
  outlive_output();
  LaunchPlan now = plan;
  std::string lost;
  const auto machines = meet_machines(plan);
  for (int restart = 0;; ++restart) {
    const bool may_restart = restart < plan.options.max_restarts;
    options.output.attempt = restart;
    options.others = may_restart ? machines.get() : nullptr;
    options.first_rank = now.accelerate.machine_rank * ranks_here(now.accelerate);
    const Outcome outcome = supervise(commands_of(now, restart), options, log_warning);
    // A user who wants an end does not wait for a reader who stands still.
    const bool is_heard = outcome.forwarded_signal == 0 || has_room(STDERR_FILENO);
    if (outcome.failure && is_heard) report_failure(now, outcome);
    const bool again = (outcome.failure || outcome.was_called) && outcome.forwarded_signal == 0 && may_restart;
    if (!outcome.lost.empty()) lost = outcome.lost;
    if (!again) {
      if (!lost.empty()) log_error(lost);
      return outcome.exit_code == 0 && !lost.empty() ? 1 : outcome.exit_code;
    }
    if (machines) {
      try {
        machines->meet(restart + 1);
      } catch (const Error& error) {
        log_error(error.what());
        return outcome.exit_code;
      }
      close_up(plan, machines->left(), now);
    }
    log_warning(fmt::format("starting all ranks again ({} of {}){}", restart + 1, plan.options.max_restarts,
                            machines ? where(plan, machines->left()) : ""));
  }
}

}  // namespace tessera::launch
