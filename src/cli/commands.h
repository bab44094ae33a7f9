#pragma once
// The subcommands, in one table. This program loads no libtorch: it starts at once, and hands tasks over to
// tessera-worker, which lies beside it.
#include <ostream>
#include <string>
#include <vector>

#include "launch/launch.h"

namespace tessera::cli {

using Arguments = std::vector<std::string>;
using Function = int (*)(const Arguments& args, std::ostream& out, std::ostream& err);

struct Command {
  const char* name;
  const char* help;
  Function function;  // null: a task, run by tessera-worker (src/worker/tasks.cc has its function)
  bool trains = false;
};

/// The task that `tessera test` launches; no command of its own.
inline constexpr const char* kSelfTest = "self-test";
/// And the one that `tessera estimate --link` asks for this machine's rates.
inline constexpr const char* kMeasureRates = "measure-rates";

/// In the order of `tessera --help`.
const std::vector<Command>& commands();
launch::Tasks tasks();

/// The path of tessera-worker, found beside this program. ConfigError where it is missing.
std::string worker_path();

/// Replaces this process by the worker, which runs the task; environment, rank and signals stay.
[[noreturn]] void become_worker(const std::string& task, const Arguments& args);

/// args: without the program's name. Returns the exit code; does not return where a task replaces this process.
int run(const Arguments& args, std::ostream& out, std::ostream& err);

int launch_command(const Arguments& args, std::ostream& out, std::ostream& err);
int config_command(const Arguments& args, std::ostream& out, std::ostream& err);
int test_command(const Arguments& args, std::ostream& out, std::ostream& err);
int to_fsdp2_command(const Arguments& args, std::ostream& out, std::ostream& err);
int estimate_command(const Arguments& args, std::ostream& out, std::ostream& err);
int tokenize_command(const Arguments& args, std::ostream& out, std::ostream& err);
int status_command(const Arguments& args, std::ostream& out, std::ostream& err);
int watch_command(const Arguments& args, std::ostream& out, std::ostream& err);
int report_command(const Arguments& args, std::ostream& out, std::ostream& err);
int env_command(const Arguments& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::cli
