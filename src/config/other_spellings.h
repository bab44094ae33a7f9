#pragma once
#include <string>
#include <vector>

namespace tessera::config {

/// " (did you mean 'x'?)": the name in `known` for what torchrun, LLaMA-Factory, axolotl and the Trainer's scripts call
/// `flag`, else the nearest one; "" without any.
std::string meant_by(const std::string& flag, const std::vector<std::string>& known);

/// Whether `tessera launch` has a working flag of this name (without dashes).
bool is_launch_flag(const std::string& name);

}  // namespace tessera::config
