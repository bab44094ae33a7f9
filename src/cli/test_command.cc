// tessera test: launches the self-test with a configuration.
#include "base/log.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/options.h"
#include "launch/launch.h"

namespace tessera::cli {

int test_command(const Arguments& args, std::ostream& out, std::ostream&) {
  std::string file;
  config::OptionTable table(
      "tessera test",
      "starts ranks with a config file and checks that they reach each other and that training over "
      "them gives what one rank alone gives");
  table.add(&file, {"--config_file"}, "file to test (default: the one that launch would take)").placeholder("FILE");
  table.example("--config_file fsdp_config.yaml");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  Arguments launched = {kSelfTest};
  if (!file.empty()) launched.insert(launched.begin(), {"--config_file", file});
  const auto plan = launch::plan_launch(launched, {{kSelfTest}, worker_path()});
  for (const std::string& warning : plan->warnings) log_warning(warning);
  for (const std::string& note : plan->notes) log_info(note);
  const int code = launch::run_launch(*plan);
  if (code == kSuccess) out << "Test is a success! You are ready for your distributed training!\n";
  return code;
}

}  // namespace tessera::cli
