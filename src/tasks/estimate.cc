#include "tasks/estimate.h"

#include "estimate/estimate.h"
#include "io/safetensors_dtype.h"
#include "models/model.h"

namespace tessera::tasks {

int estimate(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  const auto options = estimate::parse_estimate(args, out);
  if (!options) return 0;
  models::ModelConfig config;
  const auto model = models::build_model(options->model, &config);
  std::vector<estimate::ModelTensor> tensors;
  for (const auto& p : model->named_parameters())
    tensors.push_back({p.key(), p.value().sizes().vec(), std::string(io::safetensors_dtype_name(config.stored_dtype))});
  estimate::print_estimate(*options, tensors, out);
  return 0;
}

}  // namespace tessera::tasks
