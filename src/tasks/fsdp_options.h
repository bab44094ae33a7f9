#pragma once
// accelerate's settings as the sharding runtime takes them.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/accelerate.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::tasks {

/// `wrap` stays unset for TRANSFORMER_BASED_WRAP without class names (the model's no-split classes are meant).
fsdp::FsdpOptions fsdp_options(const config::AccelerateConfig& config);

/// Of a task's --device: the CPU for "auto" (no GPU has been measured) and "cpu"; for "cuda" one of the host's GPUs, by
/// the rank on the host. ConfigError names what is missing for that: fsdp_offload_params: true, CUDA in libtorch, a
/// GPU.
at::Device compute_device(const std::string& device, const config::AccelerateConfig& config);

/// The launcher's settings with the task's own --bf16 and --fp16, which are stronger where they are given.
config::AccelerateConfig launch_settings(std::optional<bool> bf16, std::optional<bool> fp16);

std::vector<std::pair<std::string, fsdp::GatherForm>> gather_forms();

}  // namespace tessera::tasks
