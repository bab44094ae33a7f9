#pragma once
// Optimizers by the names of Trainer's --optim.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

/// Trainer's flags.
struct OptimizerOptions {
  double lr = 5e-5, weight_decay = 0.0;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  std::int64_t warmup_steps = 0;  // of optimizers without a schedule; schedules have their own
  /// "momentum=0.9,nesterov=true": arguments of the optimizer's own class, stronger than the flags above.
  std::string optim_args = "";
};

/// name: of Trainer's optimizers all but torchao's and those of other devices; optimizer_names() lists them. adafactor
/// is as Trainer has it: scale_parameter and relative_step off unless given. Names of one rule give the same numbers
/// (paging is about GPU memory: in host memory the 32-bit paged optimizers are the plain ones, upstream as well).
/// ConfigError for names that are not built, with the reason, for unknown names (with the nearest) and arguments.
/// `slices` name what lies in `parameters` (for example fsdp::parameter_slices()). `group`: the ranks that share the
/// parameters; null where each parameter is whole here.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const OptimizerOptions& options,
                                          std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices,
                                          std::shared_ptr<comm::Communicator> group);

/// Names that make_optimizer() builds, for help texts.
std::vector<std::string> optimizer_names();

/// False for parameters that Trainer does not decay by their name: bias, layernorm, rmsnorm, norm, *_norm. (It also
/// leaves out every member of a LayerNorm module: see nn's class names.)
bool decays_by_name(const std::string& parameter);

}  // namespace tessera::optim
