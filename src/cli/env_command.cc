#include <fmt/format.h>

#include "base/env.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/accelerate.h"
#include "config/options.h"
#include "launch/cores.h"

namespace tessera::cli {

int env_command(const Arguments& args, std::ostream& out, std::ostream&) {
  config::OptionTable table("tessera env", "shows versions, cores and the environment variables that tessera reads");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  out << fmt::format("tessera {}\ncompiler: {}\nlibtorch: {}\nusable cores: {}\nconfig file: {}\n", TESSERA_VERSION,
                     __VERSION__, TESSERA_TORCH_VERSION, launch::usable_cpus().size(),
                     config::default_accelerate_path());
  out << "environment variables\n";
  for (const EnvironmentVariable& variable : environment_variables()) {
    auto value = environment(variable.name);
    if (value && variable.is_secret) value = "(set, not shown)";
    out << fmt::format("  {:<28} {}\n  {:<28} {}\n", variable.name, value.value_or("(not set)"), "", variable.meaning);
  }
  return kSuccess;
}

}  // namespace tessera::cli
