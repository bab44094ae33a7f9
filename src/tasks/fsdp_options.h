#pragma once
// accelerate's settings as the sharding runtime takes them.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/accelerate.h"
#include "tessera/comm/communicator.h"
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
  int local_rank = 0;
};
GpuFacts gpu_facts();

/// Of a task's --device: of the GPUs that the rank sees the one of its number on the host (of one, that), for "cuda",
/// and for "auto" where libtorch has CUDA, the system a driver, and `config` no use_cpu: true; else the CPU.
/// ConfigError names what is missing for a GPU: CUDA in libtorch, a driver that works.
at::Device compute_device(const std::string& device, const config::AccelerateConfig& config,
                          const GpuFacts& facts = gpu_facts());

/// Collective: the same, with a device of its own for each rank.
at::Device compute_device(const std::string& device, const config::AccelerateConfig& config, comm::Communicator& group);
/// Collective: ConfigError names ranks of a host that would share a device, unless TESSERA_SHARE_GPUS lets them.
void require_own_devices(at::Device device, comm::Communicator& group);

/// Collective: the device that a training job asks for, with libtorch's operators there as --full_determinism and
/// --tf32 want them.
at::Device training_device(const train::TrainingArguments& arguments, const config::AccelerateConfig& config,
                           comm::Communicator& group);

/// The launcher's settings with the task's own --bf16 and --fp16, which are stronger where they are given.
config::AccelerateConfig launch_settings(std::optional<bool> bf16, std::optional<bool> fp16);

std::vector<std::pair<std::string, fsdp::GatherForm>> gather_forms();

}  // namespace tessera::tasks
