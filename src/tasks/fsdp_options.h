#pragma once
// accelerate's settings as the sharding runtime takes them.
#include <string>
#include <utility>
#include <vector>

#include "config/accelerate.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::tasks {

/// `wrap` stays unset for TRANSFORMER_BASED_WRAP without class names (the model's no-split classes are meant).
fsdp::FsdpOptions fsdp_options(const config::AccelerateConfig& config);

std::vector<std::pair<std::string, fsdp::GatherForm>> gather_forms();

}  // namespace tessera::tasks
