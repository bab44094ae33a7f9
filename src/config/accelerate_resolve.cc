#include <fmt/format.h>

#include "base/nearest.h"
#include "config/accelerate_input.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

[[noreturn]] void fail(const std::string& source, const std::string& key, const std::string& message) {
  throw ConfigError(source + ": " + message, key);
}

/// Of accelerate's other types; for what is none of them the nearest that is supported.
std::string why_unsupported(const std::string& type) {
  for (const char* engine : {"DEEPSPEED", "MEGATRON_LM"}) {
    if (detail::equal_ignoring_case(type, engine)) return " (another engine)";
  }
  for (const char* device :
       {"TPU", "XLA", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU", "MULTI_NEURON"}) {
    if (detail::equal_ignoring_case(type, device)) return " (there is no code for such devices)";
  }
  return did_you_mean(type, {"FSDP", "MULTI_CPU", "MULTI_GPU"});
}

bool resolve_use_fsdp(const AccelerateInput& in, const std::string& source) {
  if (in.use_fsdp) return *in.use_fsdp;
  if (!in.distributed_type) return true;
  const std::string& type = *in.distributed_type;
  if (detail::equal_ignoring_case(type, "FSDP")) return true;
  const std::vector<std::string> plain = {"NO", "MULTI_CPU", "MULTI_GPU"};
  for (const std::string& name : plain) {
    if (detail::equal_ignoring_case(type, name)) return false;
  }
  fail(source, "distributed_type",
       fmt::format(
           "distributed_type '{}' is not supported{}; use FSDP (sharded), or NO, MULTI_CPU or MULTI_GPU (replicated)",
           type, why_unsupported(type)));
}

/// What reshard_after_forward says about the strategy: nothing, where it is unset.
std::optional<ShardingStrategy> reshard_strategy(const AccelerateInput& in, int version, const std::string& source) {
  if (!in.reshard_after_forward) return std::nullopt;
  if (const auto on = parse_bool(*in.reshard_after_forward); on && (version == 2 || !*on)) {
    return *on ? ShardingStrategy::kFullShard : ShardingStrategy::kShardGradOp;
  } else if (on) {
    return std::nullopt;  // version 1 with `true`: accelerate's default for the key, which says nothing there
  }
  std::optional<ShardingStrategy> strategy;
  if (bind_names(&strategy, sharding_strategies()).set({*in.reshard_after_forward})) return strategy;
  fail(source, "fsdp_reshard_after_forward",
       fmt::format("fsdp_reshard_after_forward expects {}, found '{}'",
                   version == 2 ? "true or false" : "a strategy such as FULL_SHARD or SHARD_GRAD_OP",
                   *in.reshard_after_forward));
}

/// Version 2 says with a boolean what the hybrid names say as well.
bool agree(ShardingStrategy strategy, ShardingStrategy reshard, int version) {
  if (strategy == reshard) return true;
  return version == 2 &&
         ((strategy == ShardingStrategy::kHybridShard && reshard == ShardingStrategy::kFullShard) ||
          (strategy == ShardingStrategy::kHybridShardZero2 && reshard == ShardingStrategy::kShardGradOp));
}

ShardingStrategy resolve_strategy(const AccelerateInput& in, int version, const std::string& source) {
  const auto reshard = reshard_strategy(in, version, source);
  if (in.sharding_strategy && reshard && !agree(*in.sharding_strategy, *reshard, version)) {
    fail(source, "fsdp_reshard_after_forward",
         fmt::format(
             "fsdp_sharding_strategy {} and fsdp_reshard_after_forward {} contradict each other; keep one of them",
             name_of(*in.sharding_strategy), *in.reshard_after_forward));
  }
  const auto strategy = in.sharding_strategy.value_or(reshard.value_or(ShardingStrategy::kFullShard));
  if (in.dp_replicate_size == 1) return strategy;
  if (in.dp_shard_size == 1) return ShardingStrategy::kNoShard;
  const bool keeps = strategy == ShardingStrategy::kShardGradOp || strategy == ShardingStrategy::kHybridShardZero2;
  return keeps ? ShardingStrategy::kHybridShardZero2 : ShardingStrategy::kHybridShard;
}

/// Of the file and of flags. accelerate wants the product of the dimensions to be the number of processes.
void check_parallelism(const AccelerateInput& in, const std::string& source) {
  if (in.dp_replicate_size < 1 || in.dp_shard_size < 1) {
    fail(source, "parallelism_config",
         fmt::format("parallelism_config: dp_replicate_size and dp_shard_size must be at least 1, found {} and {}",
                     in.dp_replicate_size, in.dp_shard_size));
  }
  const std::int64_t product = std::int64_t{in.dp_replicate_size} * in.dp_shard_size;
  const int processes = in.num_processes.value_or(1);
  if (product > 1 && processes != product) {
    fail(source, "parallelism_config",
         fmt::format("parallelism_config: dp_replicate_size {} x dp_shard_size {} must be num_processes {}",
                     in.dp_replicate_size, in.dp_shard_size, processes));
  }
}

int resolve_shard_group(const AccelerateInput& in, ShardingStrategy strategy, const std::string& source) {
  if (!in.shard_group_size || *in.shard_group_size == 0)
    return in.dp_replicate_size > 1 && in.dp_shard_size > 1 ? in.dp_shard_size : 0;
  const int size = *in.shard_group_size;
  if (strategy != ShardingStrategy::kHybridShard && strategy != ShardingStrategy::kHybridShardZero2) {
    fail(source, "fsdp_shard_group_size",
         fmt::format("fsdp_shard_group_size {} contradicts fsdp_sharding_strategy {}; remove it, or use HYBRID_SHARD",
                     size, name_of(strategy)));
  }
  const int ranks = in.num_processes.value_or(1);
  if (size < 0 || (ranks > 0 && ranks % size != 0)) {
    fail(source, "fsdp_shard_group_size",
         fmt::format("fsdp_shard_group_size {} does not divide num_processes {}", size, ranks));
  }
  return size;
}

void resolve_wrapping(const AccelerateInput& in, const std::string& source, bool has_file, FsdpConfig& out,
                      std::vector<std::string>& warnings) {
  out.transformer_layer_cls_to_wrap = in.transformer_layer_cls_to_wrap;
  const bool has_classes = !in.transformer_layer_cls_to_wrap.empty();
  if (in.auto_wrap_policy) {
    out.auto_wrap_policy = *in.auto_wrap_policy;
  } else if (has_classes || !has_file) {
    out.auto_wrap_policy = WrapPolicy::kTransformerBased;
    if (has_classes && has_file) {
      warnings.push_back(source +
                         ": fsdp_transformer_layer_cls_to_wrap without fsdp_auto_wrap_policy: "
                         "TRANSFORMER_BASED_WRAP is assumed");
    }
  }
  if (has_classes && out.auto_wrap_policy != WrapPolicy::kTransformerBased) {
    fail(source, "fsdp_transformer_layer_cls_to_wrap",
         fmt::format("fsdp_transformer_layer_cls_to_wrap ({}) contradicts fsdp_auto_wrap_policy {}; remove it, or use "
                     "TRANSFORMER_BASED_WRAP",
                     fmt::join(in.transformer_layer_cls_to_wrap, ","), name_of(out.auto_wrap_policy)));
  }
  if (out.auto_wrap_policy == WrapPolicy::kSizeBased) {
    out.min_num_params = in.min_num_params.value_or(out.min_num_params);
    if (out.min_num_params >= 0) return;
    fail(source, "fsdp_min_num_params",
         fmt::format("fsdp_min_num_params must not be negative, found {}", out.min_num_params));
  } else if (in.min_num_params) {
    warnings.push_back(fmt::format("{}: fsdp_min_num_params has no effect with {} (only with SIZE_BASED_WRAP)", source,
                                   name_of(out.auto_wrap_policy)));
  }
}

FsdpConfig resolve_fsdp(const AccelerateInput& in, const std::string& source, bool has_file,
                        std::vector<std::string>& warnings) {
  FsdpConfig out;
  out.version = in.version.value_or(1);
  if (out.version != 1 && out.version != 2) {
    fail(source, "fsdp_version", fmt::format("fsdp_version expects 1 or 2, found {}", out.version));
  }
  check_parallelism(in, source);
  out.sharding_strategy = resolve_strategy(in, out.version, source);
  out.shard_group_size = resolve_shard_group(in, out.sharding_strategy, source);
  resolve_wrapping(in, source, has_file, out, warnings);
  // Where gathers copy, prefetch hides them; ahead of a disk it costs memory, which is what a disk is to save.
  const bool on_disk = !in.offload_folder.value_or("").empty();
  out.backward_prefetch = in.backward_prefetch.value_or(on_disk ? BackwardPrefetch::kNone : BackwardPrefetch::kPre);
  out.state_dict_type = in.state_dict_type.value_or(out.version == 2 ? StateDictType::kSharded : StateDictType::kFull);
  out.offload_params = in.offload_params.value_or(out.offload_params);
  out.forward_prefetch = in.forward_prefetch.value_or(!on_disk);
  out.use_orig_params = in.use_orig_params.value_or(out.use_orig_params);
  out.cpu_ram_efficient_loading = in.cpu_ram_efficient_loading.value_or(out.cpu_ram_efficient_loading);
  out.sync_module_states = in.sync_module_states.value_or(true) || out.cpu_ram_efficient_loading;
  out.activation_checkpointing = in.activation_checkpointing.value_or(out.activation_checkpointing);
  out.ignored_modules = in.ignored_modules.value_or("");
  out.offload_folder = in.offload_folder.value_or("");
  return out;
}

void resolve_machines(const AccelerateInput& in, const std::string& source, bool has_file, AccelerateConfig& out) {
  out.num_processes = in.num_processes.value_or(has_file ? -1 : 1);
  out.num_machines = in.num_machines.value_or(1);
  out.machine_rank = in.machine_rank.value_or(0);
  if (out.num_processes < 1) {
    fail(source, "num_processes",
         fmt::format("num_processes must be at least 1, {}; set it there or give --num_processes N",
                     in.num_processes ? fmt::format("found {}", out.num_processes) : "but it is not set"));
  }
  if (out.num_machines < 1) {
    fail(source, "num_machines", fmt::format("num_machines must be at least 1, found {}", out.num_machines));
  }
  if (out.machine_rank < 0 || out.machine_rank >= out.num_machines) {
    fail(source, "machine_rank",
         fmt::format("machine_rank is {} and num_machines {}: machines are numbered from 0 to {}", out.machine_rank,
                     out.num_machines, out.num_machines - 1));
  }
  if (out.num_processes % out.num_machines != 0) {
    fail(source, "num_processes",
         fmt::format("num_processes counts the ranks of all machines: {} cannot be shared equally by {} machines",
                     out.num_processes, out.num_machines));
  }
  if (out.num_machines > 1 && in.main_process_ip.value_or("").empty()) {
    fail(source, "main_process_ip",
         fmt::format("num_machines is {} and main_process_ip is not set: set it to the address of the machine with "
                     "machine_rank 0, and main_process_port to a port that is free there",
                     out.num_machines));
  }
  out.main_process_port = in.main_process_port.value_or(0);
  if (out.main_process_port < 0 || out.main_process_port > 65535) {
    fail(source, "main_process_port",
         fmt::format("main_process_port expects 0 to 65535, found {}", out.main_process_port));
  }
  out.main_process_ip = in.main_process_ip.value_or(out.main_process_ip);
}

}  // namespace

AccelerateConfig resolve(const AccelerateInput& in, const std::string& source, bool has_file,
                         std::vector<std::string>& warnings) {
  if (in.compute_environment && !detail::equal_ignoring_case(*in.compute_environment, "LOCAL_MACHINE")) {
    fail(source, "compute_environment",
         fmt::format("compute_environment '{}' is not supported; use LOCAL_MACHINE", *in.compute_environment));
  }
  if (in.dynamo_backend && !detail::equal_ignoring_case(*in.dynamo_backend, "no")) {
    warnings.push_back(
        fmt::format("{}: dynamo_backend {} has no effect: there is no Python to compile", source, *in.dynamo_backend));
  }
  AccelerateConfig out;
  out.use_fsdp = resolve_use_fsdp(in, source);
  out.mixed_precision = in.mixed_precision.value_or(out.mixed_precision);
  if (out.mixed_precision == MixedPrecision::kFp8) {
    fail(source, "mixed_precision", "mixed_precision fp8 is not supported; use no, bf16 or fp16");
  }
  resolve_machines(in, source, has_file, out);
  out.use_cpu = in.use_cpu.value_or(out.use_cpu);
  out.debug = in.debug.value_or(out.debug);
  out.gpu_ids = in.gpu_ids;
  out.enable_cpu_affinity = in.enable_cpu_affinity.value_or(out.enable_cpu_affinity);
  out.fsdp = resolve_fsdp(in, source, has_file, warnings);
  const bool any_fsdp = in.sharding_strategy || in.auto_wrap_policy || in.reshard_after_forward ||
                        in.backward_prefetch || in.state_dict_type || in.offload_params || in.forward_prefetch ||
                        in.activation_checkpointing || in.ignored_modules || in.offload_folder || in.shard_group_size;
  if (!out.use_fsdp && any_fsdp) {
    warnings.push_back(
        fmt::format("{}: the fsdp_* settings have no effect with distributed_type {}; set it to FSDP to shard", source,
                    in.distributed_type.value_or("NO")));
  }
  return out;
}

void drop_overridden(const OptionTable& flags, AccelerateInput& from_file) {
  if (flags.given("fsdp_sharding_strategy") && !flags.given("fsdp_reshard_after_forward")) {
    from_file.reshard_after_forward.reset();
  }
  if (flags.given("fsdp_reshard_after_forward") && !flags.given("fsdp_sharding_strategy")) {
    from_file.sharding_strategy.reset();
  }
  if (flags.given("fsdp_auto_wrap_policy") && !flags.given("fsdp_transformer_layer_cls_to_wrap")) {
    from_file.transformer_layer_cls_to_wrap.clear();
  }
}

}  // namespace tessera::config
