#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/measured_rates.h"
#include "estimate/estimate.h"

namespace tessera::cli {

int estimate_command(const Arguments& args, std::ostream& out, std::ostream&) {
  const auto options = estimate::parse_estimate(args, out);
  if (!options) return kSuccess;
  const auto place = estimate::weights_of(options->model);
  if (!place.adapter.empty()) out << "'" << options->model << "' is an adapter of '" << place.folder << "':\n";
  estimate::print_estimate(*options, estimate::read_model_tensors(place.folder), out, measured_rates);
  return kSuccess;
}

}  // namespace tessera::cli
