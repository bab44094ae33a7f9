#pragma once
// The launcher's files that TRL brings along, by name (`--accelerate_config fsdp2`).
#include <string>
#include <vector>

namespace tessera::launch {

std::vector<std::string> profile_names();

/// The file as YAML, without the number of processes. ConfigError for zero1 to zero3, which belong to another engine,
/// and for a name that is neither one of these nor a file.
std::string profile(const std::string& name);

}  // namespace tessera::launch
