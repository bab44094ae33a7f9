#pragma once
// `tessera launch [accelerate's flags] TASK|PROGRAM args...`: one process for each rank on this machine;
// other machines run the same with another --machine_rank.
#include <optional>
#include <string>
#include <vector>

#include "config/accelerate.h"
#include "config/accelerate_input.h"
#include "launch/cores.h"
#include "launch/supervisor.h"

namespace tessera::launch {

/// The subcommands that may be launched by name, and the program that runs them.
struct Tasks {
  std::vector<std::string> names;
  std::string program;
  std::vector<std::string> training = {};  // of them those that take the launcher's flags behind their names, too
};

struct LaunchOptions {
  std::optional<std::string> config_file, accelerate_config;
  std::optional<int> num_cpu_threads_per_process;
  int tee = 0;  // as torchrun's: 1 stdout, 2 stderr, 3 both
  std::string log_dir;
  int max_restarts = 0;
  std::optional<double> grace_period;  // seconds, for ranks to end after a signal; nothing: no limit
  std::string role = "default";
  bool multi_gpu = false;
  std::vector<std::string> command;
};

OutputOptions output_of(const LaunchOptions& options);

struct LaunchPlan {
  config::AccelerateConfig accelerate;
  LaunchOptions options;
  CorePlan cores;
  std::vector<std::string> notes, warnings;  // for the log, each once
  std::string program;                       // what each rank runs
  std::vector<std::string> args;             // with args[0]
  bool is_task = false;                      // the program is that of Tasks
  bool names_mixed_precision = true;         // false: the ranks' environment leaves it to the task
};

/// Reads flags and file and checks everything that can be checked before a process starts. Nothing where --help was
/// asked for. ConfigError says all that is wrong: bad flags, a missing or bad file, too few cores, an unknown
/// task or program.
std::optional<LaunchPlan> plan_launch(const std::vector<std::string>& args, const Tasks& tasks);

/// The flags, bound to `options` and `accelerate`, whose values are the defaults.
config::OptionTable launch_table(LaunchOptions& options, config::AccelerateInput& accelerate);

/// The flags by group, with defaults, and the tasks; form: --help, or --help=json (config/options.h).
std::string launch_help(const Tasks& tasks, const std::string& form = "--help");

/// Starts the ranks, restarts them up to max_restarts times when one fails, and says in the log which failed and how.
/// Returns the exit code: 0, that of the first failing rank, 128 + signal.
int run_launch(const LaunchPlan& plan);

/// Whether run_launch() has started this process.
bool is_launched();

/// Ranks that this machine starts; the first of them is machine_rank times as many.
inline int ranks_here(const config::AccelerateConfig& accelerate) {
  return accelerate.num_processes / accelerate.num_machines;
}

/// torchrun's variables, accelerate's and OMP_NUM_THREADS for one rank of this machine (`local_rank` from 0).
config::Environment rank_environment(const LaunchPlan& plan, int local_rank, int port, int restart);

}  // namespace tessera::launch
