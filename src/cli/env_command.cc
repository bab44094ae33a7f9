#include <fmt/format.h>

#include "base/env.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/accelerate.h"
#include "launch/cores.h"
#include "tessera/base/error.h"

namespace tessera::cli {

int env_command(const Arguments& args, std::ostream& out, std::ostream&) {
  if (!args.empty()) {
    if (args[0] != "--help" && args[0] != "-h")
      throw ConfigError("'tessera env' takes no arguments, found '" + args[0] + "'");
    out << "tessera env: shows versions, cores and the environment variables that tessera reads\n";
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
