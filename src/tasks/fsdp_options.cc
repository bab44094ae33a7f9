#include "tasks/fsdp_options.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <fstream>

#include "base/env.h"
#include "base/rank_environment.h"
#include "comm/device/device_identity.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

fsdp::ShardingStrategy strategy_of(const config::AccelerateConfig& config) {
  using config::ShardingStrategy;
  if (!config.use_fsdp) return fsdp::ShardingStrategy::kNoShard;
  switch (config.fsdp.sharding_strategy) {
    case ShardingStrategy::kFullShard:
      return fsdp::ShardingStrategy::kFullShard;
    case ShardingStrategy::kShardGradOp:
      return fsdp::ShardingStrategy::kShardGradOp;
    case ShardingStrategy::kNoShard:
      return fsdp::ShardingStrategy::kNoShard;
    case ShardingStrategy::kHybridShard:
      return fsdp::ShardingStrategy::kHybridShard;
    case ShardingStrategy::kHybridShardZero2:
      return fsdp::ShardingStrategy::kHybridShardZero2;
  }
  return fsdp::ShardingStrategy::kFullShard;
}

/// The pattern is matched as accelerate does it, against the names of the model or of the PeftModel around it.
fsdp::ModuleFilter ignored_of(const std::string& pattern) {
  if (pattern.empty()) return nullptr;
  return [matches = fsdp::named_like(pattern)](const std::string& name, const torch::nn::Module& module) {
    return !name.empty() && (matches(name, module) || matches("base_model.model." + name, module));
  };
}

fsdp::WrapPolicy wrap_of(const config::FsdpConfig& config) {
  switch (config.auto_wrap_policy) {
    case config::WrapPolicy::kTransformerBased:
      if (config.transformer_layer_cls_to_wrap.empty()) return nullptr;
      return fsdp::wrap_classes(config.transformer_layer_cls_to_wrap);
    case config::WrapPolicy::kSizeBased:
      return fsdp::wrap_size(config.min_num_params);
    case config::WrapPolicy::kNoWrap:
      return fsdp::wrap_none();
  }
  return nullptr;
}

/// As accelerate sets FSDP's MixedPrecision; fp16 needs an optim::GradScaler beside it.
fsdp::MixedPrecision precision_of(config::MixedPrecision precision) {
  if (precision == config::MixedPrecision::kNo) return {};
  const bool half = precision == config::MixedPrecision::kFp16;
  if (!half && precision != config::MixedPrecision::kBf16)
    throw ConfigError(
        "mixed_precision " + config::name_of(precision) + " is not available on CPUs; use bf16, fp16 or no",
        "mixed_precision");
  const auto dtype = half ? at::kHalf : at::kBFloat16;
  return {.param_dtype = dtype, .reduce_dtype = dtype, .buffer_dtype = dtype, .output_dtype = at::kFloat};
}

}  // namespace

fsdp::FsdpOptions fsdp_options(const config::AccelerateConfig& config) {
  fsdp::FsdpOptions options;
  options.strategy = strategy_of(config);
  if (config.use_fsdp) options.shard_group_size = config.fsdp.shard_group_size;
  options.wrap = wrap_of(config.fsdp);
  options.ignored_modules = ignored_of(config.fsdp.ignored_modules);
  if (config.fsdp.activation_checkpointing) options.activation_checkpointing = fsdp::same_as_wrap();
  options.sync_module_states = config.fsdp.sync_module_states;
  options.forward_prefetch = config.fsdp.forward_prefetch;
  options.check_order = config.debug;
  options.offload_folder = config.fsdp.offload_folder;
  options.state_on = config.fsdp.offload_params ? fsdp::StateOn::kHost : fsdp::StateOn::kDevice;
  options.precision = precision_of(config.mixed_precision);
  switch (config.fsdp.backward_prefetch) {
    case config::BackwardPrefetch::kPre:
      options.backward_prefetch = fsdp::BackwardPrefetch::kPre;
      break;
    case config::BackwardPrefetch::kPost:
      options.backward_prefetch = fsdp::BackwardPrefetch::kPost;
      break;
    case config::BackwardPrefetch::kNone:
      options.backward_prefetch = fsdp::BackwardPrefetch::kNone;
      break;
  }
  return options;
}

GpuFacts gpu_facts() {
  GpuFacts facts;
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(at::kCUDA)].load();
  facts.built = guard != nullptr;
  if (guard) facts.count = guard->deviceCount();  // 0 where there is no driver, or too old a one
  std::ifstream driver("/proc/driver/nvidia/version");
  std::getline(driver, facts.driver);
  facts.local_rank = read_rank_environment().local_rank;
  return facts;
}

at::Device compute_device(const std::string& device, const config::AccelerateConfig& config, const GpuFacts& facts) {
  const bool none_here = config.use_cpu || !facts.built || (facts.count == 0 && facts.driver.empty());
  if (device == "cpu" || (device == "auto" && none_here)) return at::kCPU;
  const auto refuse = [&](bool missing, const std::string& what) {
    if (missing)
      throw ConfigError("--device " + device + ": " + what + "; or use --device cpu (use_cpu: true for the launcher)",
                        "device");
  };
  refuse(config.use_cpu, "the launcher's settings say use_cpu: true; set it to false");
  refuse(!facts.built, "this libtorch was built without CUDA; build with one that has it (-DTESSERA_TORCH=DIR)");
  refuse(facts.count == 0 && facts.driver.empty(),
         "no NVIDIA driver is loaded on this machine (there is no /proc/driver/nvidia/version); install one, or in a "
         "container give it the GPUs");
  refuse(facts.count == 0, "libtorch finds no GPU that it can use, and the driver is '" + facts.driver +
                               "'; look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and whether the driver is new enough "
                               "for the CUDA of this libtorch (TORCH_CPP_LOG_LEVEL=WARNING shows what it says)");
  return {at::kCUDA, static_cast<c10::DeviceIndex>(facts.local_rank % facts.count)};
}

at::Device compute_device(const std::string& device, const config::AccelerateConfig& config,
                          comm::Communicator& group) {
  const auto found = compute_device(device, config);
  require_own_devices(found, group);
  return found;
}

void require_own_devices(at::Device device, comm::Communicator& group) {
  if (group.size() == 1) return;
  const auto shared = comm::find_shared_device(group, device);
  if (shared.ranks.empty() || environment("TESSERA_SHARE_GPUS") == "1") return;
  throw ConfigError(
      fmt::format("ranks {} of a host have one GPU between them ({}), and each rank needs its own; set num_processes, "
                  "gpu_ids or CUDA_VISIBLE_DEVICES, under SLURM --gpus-per-task=1 (for a trial, TESSERA_SHARE_GPUS=1 "
                  "lets ranks share them); or use --device cpu (use_cpu: true for the launcher)",
                  fmt::join(shared.ranks, ", "), shared.identity),
      "device");
}

at::Device training_device(const train::TrainingArguments& arguments, const config::AccelerateConfig& config,
                           comm::Communicator& group) {
  const auto device = compute_device(arguments.wanted_device(), config, group);
  if (device.is_cpu()) return device;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);  // whose random numbers checkpoints keep
  auto& libtorch = at::globalContext();
  if (arguments.full_determinism) {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // read when cuBLAS begins, which is later
    libtorch.setDeterministicCuDNN(true);
    libtorch.setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  if (arguments.tf32) libtorch.setAllowTF32CuBLAS(true);
  return device;
}

config::AccelerateConfig launch_settings(std::optional<bool> bf16, std::optional<bool> fp16) {
  using config::MixedPrecision;
  config::AccelerateConfig launch = config::from_environment();
  if (bf16.value_or(false) && fp16.value_or(false)) throw ConfigError("--bf16 and --fp16 exclude each other", "bf16");
  if (bf16 == false && launch.mixed_precision == MixedPrecision::kBf16) launch.mixed_precision = MixedPrecision::kNo;
  if (fp16 == false && launch.mixed_precision == MixedPrecision::kFp16) launch.mixed_precision = MixedPrecision::kNo;
  if (bf16.value_or(false)) launch.mixed_precision = MixedPrecision::kBf16;
  if (fp16.value_or(false)) launch.mixed_precision = MixedPrecision::kFp16;
  return launch;
}

std::vector<std::pair<std::string, fsdp::GatherForm>> gather_forms() {
  return {{"auto", fsdp::GatherForm::kAuto},
          {"copy", fsdp::GatherForm::kCopy},
          {"shared", fsdp::GatherForm::kShared},
          {"mapped", fsdp::GatherForm::kMapped}};
}

}  // namespace tessera::tasks
