#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/nearest.h"
#include "base/open_file.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/accelerate_input.h"
#include "launch/cores.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

int write_default(const Arguments& args, std::ostream& out) {
  std::string path = config::default_accelerate_path();
  config::AccelerateInput input;
  input.num_processes = std::min<int>(2, static_cast<int>(launch::usable_cpus().size()));
  config::OptionTable table("tessera config default",
                            "writes a config file for launch: fully sharded, by the model's layers");
  table.add(&path, {"--config_file"}, "file to write", "Configuration").placeholder("FILE");
  config::add_accelerate_options(table, input);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  if (is_there(path)) {
    throw ConfigError(fmt::format("'{}' exists already; remove it, or name another file with --config_file", path),
                      "config_file");
  }
  std::vector<std::string> warnings;
  const std::string text = config::to_yaml(config::resolve(input, "command line", /*has_file=*/false, warnings));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) ensure_writable_folder(folder);
  write_file_atomically(path, text);
  for (const std::string& note : table.notes()) out << note << "\n";
  for (const std::string& warning : warnings) out << warning << "\n";
  out << "accelerate configuration saved at " << path << "\n";
  return kSuccess;
}

}  // namespace

int config_command(const Arguments& args, std::ostream& out, std::ostream&) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    out << "tessera config: writes a config file for launch\n\nUsage: tessera config default [flags]\n\n"
           "'tessera config default --help' lists the flags.\n";
    return args.empty() ? kConfigError : kSuccess;
  }
  if (args[0] == "default") return write_default({args.begin() + 1, args.end()}, out);
  throw ConfigError(fmt::format("unknown command 'config {}'{}; there is 'tessera config default'", args[0],
                                did_you_mean(args[0], {"default"})));
}

}  // namespace tessera::cli
