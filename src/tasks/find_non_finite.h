#pragma once
#include <functional>
#include <string>

#include "tessera/nn/block.h"

namespace tessera::tasks {

/// Calls `forward` while every module's outputs are watched; the first module in the order of execution whose output
/// holds a NaN or an infinity, with its unit and the output's dtype: "'layers.0.mlp' of unit 'layers.0' (BFloat16)"; or
/// empty. Units that are attached to modules go on working.
std::string find_non_finite(nn::HookedModule& root, const std::function<void()>& forward);

}  // namespace tessera::tasks
