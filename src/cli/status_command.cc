#include "base/folder_names.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/options.h"
#include "report/run_status.h"

namespace tessera::cli {

int status_command(const Arguments& args, std::ostream& out, std::ostream&) {
  std::string folder;
  config::OptionTable table(
      "tessera status",
      "says what each rank of a running training is doing, since when, and for whom the others wait; also while ranks "
      "stand still. Of a run that has ended, where it ended");
  table.positional(&folder, "DIR", "output_dir of the run");
  table.example("out/lora");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  folder = without_end_slashes(std::move(folder));
  out << report::describe(report::run_status(folder));
  return kSuccess;
}

}  // namespace tessera::cli
