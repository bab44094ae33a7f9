#pragma once
// accelerate's settings as the sharding runtime takes them.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/accelerate.h"
#include "tessera/fsdp/fully_shard.h"
#include "train/training_arguments.h"

namespace tessera::tasks {

/// `wrap` stays unset for TRANSFORMER_BASED_WRAP without class names (the model's no-split classes are meant).
fsdp::FsdpOptions fsdp_options(const config::AccelerateConfig& config);

/// What there is for --device.
struct GpuFacts {
  bool built = false;  // libtorch has CUDA
  int count = 0;       // GPUs that libtorch can use
  std::string driver;  // the system's line about NVIDIA's kernel module; empty: none is loaded
  int local_rank = 0, local_ranks = 1;
  bool share = false;  // ranks may share GPUs
};
GpuFacts gpu_facts();

/// Of a task's --device: one of the host's GPUs, by the rank on the host, for "cuda", and for "auto" where libtorch has
/// CUDA, the system a driver, and `config` no use_cpu: true; else the CPU. ConfigError names what is missing for a GPU:
/// CUDA in libtorch, a driver that works, a GPU for each rank.
at::Device compute_device(const std::string& device, const config::AccelerateConfig& config,
                          const GpuFacts& facts = gpu_facts());

/// The device that a training job asks for, with libtorch's operators there as --full_determinism and --tf32 want them.
at::Device training_device(const train::TrainingArguments& arguments, const config::AccelerateConfig& config);

/// The launcher's settings with the task's own --bf16 and --fp16, which are stronger where they are given.
config::AccelerateConfig launch_settings(std::optional<bool> bf16, std::optional<bool> fp16);

std::vector<std::pair<std::string, fsdp::GatherForm>> gather_forms();

}  // namespace tessera::tasks
