#include "cli/commands.h"
#include "cli/exit_code.h"
#include "estimate/estimate.h"

namespace tessera::cli {

int estimate_command(const Arguments& args, std::ostream& out, std::ostream&) {
  const auto options = estimate::parse_estimate(args, out);
  if (!options) return kSuccess;
  estimate::print_estimate(*options, estimate::read_model_tensors(options->model), out);
  return kSuccess;
}

}  // namespace tessera::cli
