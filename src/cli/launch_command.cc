#include <algorithm>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "launch/launch.h"

namespace tessera::cli {

int launch_command(const Arguments& args, std::ostream& out, std::ostream&) {
  const launch::Tasks tasks = cli::tasks();
  const auto plan = launch::plan_launch(args, tasks);
  if (!plan) {
    const bool json = std::find(args.begin(), args.end(), "--help=json") != args.end();
    out << launch::launch_help(tasks, json ? "--help=json" : "--help");
    return kSuccess;
  }
  for (const std::string& warning : plan->warnings) log_warning(warning);
  for (const std::string& note : plan->notes) log_info(note);
  return launch::run_launch(*plan);
}

}  // namespace tessera::cli
