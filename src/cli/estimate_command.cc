#include "cli/commands.h"
#include "cli/exit_code.h"
#include "estimate/estimate.h"

namespace tessera::cli {

int estimate_command(const Arguments& args, std::ostream& out, std::ostream&) {
  const auto options = estimate::parse_estimate(args, out);
  if (!options) return kSuccess;
  const auto folder = estimate::weights_of(options->model);
  if (folder != options->model) out << "'" << options->model << "' is an adapter of '" << folder << "':\n";
  estimate::print_estimate(*options, estimate::read_model_tensors(folder), out);
  return kSuccess;
}

}  // namespace tessera::cli
