#pragma once
// What the blocks of a family keep for backward of their matrices' outputs, where the shapes alone do not say it.
#include <vector>

#include "estimate/model_tensors.h"

namespace tessera::estimate {

/// Sets kept_heads, positions, heads, kept_outputs and experts_per_token. tensors: named as the family names them.
void describe_kept_outputs(const families::FamilyConfig& config, std::vector<ModelTensor>& tensors);

}  // namespace tessera::estimate
