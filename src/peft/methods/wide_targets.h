#pragma once
#include <string>
#include <vector>

#include "models/model.h"

namespace tessera::peft {

/// The target modules of methods that PEFT lets begin with more layers than LoRA (AdaLoRA, VB-LoRA).
std::vector<std::string> wide_targets(const models::ModelConfig& family);

}  // namespace tessera::peft
