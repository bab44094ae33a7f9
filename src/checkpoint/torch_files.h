#pragma once
// The pickled parts of optimizer.bin and optimizer_0/.
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/torch_state.h"

namespace tessera::checkpoint {

struct TorchParamGroup {
  TorchOptimizerOptions options;
  std::vector<std::string> parameters;  // names in the file
};

std::vector<TorchParamGroup> torch_param_groups(const fsdp::FullyShardedDataParallel& model,
                                                const TorchOptimizerOptions& options, const TorchName& name);

/// A state tensor of one parameter: the storage with this number. A parameter's entries follow each other.
struct TorchStateEntry {
  std::string parameter, state;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::size_t storage = 0;
};

/// {"state": {parameter: {state: tensor}}, "param_groups": [...]}
std::string optimizer_pickle(const std::vector<TorchStateEntry>& entries, const std::vector<TorchParamGroup>& groups);

/// Key and pickled value of everything in a param_group: lr, betas, eps ...
std::vector<std::pair<std::string, std::string>> group_pickles(const TorchParamGroup& group);

}  // namespace tessera::checkpoint
