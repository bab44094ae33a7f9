#pragma once
#include <string>
#include <vector>

#include "estimate/model_tensors.h"

namespace tessera::estimate {

/// The layers as LoRA's layer_replication ("[[0, 4], [2, 5]]"; empty or null: as they are) stacks them, one that has
/// several places several times: what adapters and activations are counted by. ConfigError: no such layers.
std::vector<ModelTensor> at_places(const std::vector<ModelTensor>& tensors, const std::string& layer_replication);

}  // namespace tessera::estimate
