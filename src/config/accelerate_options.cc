#include "config/accelerate_input.h"

namespace tessera::config {
namespace {

template <class E>
using Names = std::vector<std::pair<std::string, std::optional<E>>>;

const Names<WrapPolicy>& wrap_policies() {
  static const Names<WrapPolicy> names = {{"TRANSFORMER_BASED_WRAP", WrapPolicy::kTransformerBased},
                                          {"SIZE_BASED_WRAP", WrapPolicy::kSizeBased},
                                          {"NO_WRAP", WrapPolicy::kNoWrap}};
  return names;
}

const Names<BackwardPrefetch>& backward_prefetches() {
  static const Names<BackwardPrefetch> names = {{"BACKWARD_PRE", BackwardPrefetch::kPre},
                                                {"BACKWARD_POST", BackwardPrefetch::kPost},
                                                {"NO_PREFETCH", BackwardPrefetch::kNone}};
  return names;
}

const Names<StateDictType>& state_dict_types() {
  static const Names<StateDictType> names = {{"FULL_STATE_DICT", StateDictType::kFull},
                                             {"LOCAL_STATE_DICT", StateDictType::kLocal},
                                             {"SHARDED_STATE_DICT", StateDictType::kSharded}};
  return names;
}

const Names<MixedPrecision>& mixed_precisions() {
  static const Names<MixedPrecision> names = {{"no", MixedPrecision::kNo},
                                              {"fp16", MixedPrecision::kFp16},
                                              {"bf16", MixedPrecision::kBf16},
                                              {"fp8", MixedPrecision::kFp8}};
  return names;
}

template <class E>
std::string find_name(const Names<E>& names, E value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return {};
}

void add_machine_options(OptionTable& t, AccelerateInput& in) {
  const char* g = "Processes and machines";
  t.add(&in.num_processes, {"--num_processes"}, "ranks to start, over all machines (default without a file: 1)", g);
  t.add(&in.num_machines, {"--num_machines"}, "machines (default: 1)", g);
  t.add(&in.machine_rank, {"--machine_rank"}, "which of the machines this is (default: 0)", g);
  t.add(&in.main_process_ip, {"--main_process_ip"}, "address of machine 0", g);
  t.add(&in.main_process_port, {"--main_process_port"},
        "port of rank 0 (default: a free one; 29500 with several machines)", g);
  t.add(&in.same_network, {"--same_network"}, "", g).without_effect("machines only need to reach each other");
  t.add(&in.rdzv_backend, {"--rdzv_backend"}, "", g).without_effect("machines meet at main_process_ip");
  t.add(&in.use_cpu, {"--cpu", "--use_cpu"}, "run on the CPU even where there is a GPU", g);
  t.add(&in.gpu_ids, {"--gpu_ids"}, "GPUs to use, 'all' or as in 0,1", g);
  t.add(&in.enable_cpu_affinity, {"--enable_cpu_affinity"},
        "insist on own cores for each rank (they are bound anyway where there are enough)", g);
  t.add(&in.debug, {"--debug"}, "compare on all ranks which units run, and name where they part", g);
  t.add_enum(&in.mixed_precision, mixed_precisions(), {"--mixed_precision"}, "compute precision (default: no)", g);
  t.add(&in.main_training_function, {"--main_training_function"}, "", g)
      .without_effect("only launches on TPUs read it");
  t.add(&in.distributed_type, {"--distributed_type"}, "FSDP, NO, MULTI_CPU or MULTI_GPU (default without a file: FSDP)",
        g);
  t.add(&in.compute_environment, {"--compute_environment"}, "LOCAL_MACHINE", g);
  t.add(&in.dynamo_backend, {"--dynamo_backend"}, "NO; others have no effect: there is no Python to compile", g);
}

void add_fsdp_options(OptionTable& t, AccelerateInput& in) {
  const char* g = "Fully sharded data parallelism";
  t.add(&in.use_fsdp, {"--use_fsdp"}, "shard fully (what distributed_type: FSDP says in a file)", g);
  t.add(&in.version, {"--fsdp_version"}, "whose keys and defaults hold: 1 or 2 (default: 1)", g);
  t.add_enum(&in.sharding_strategy, sharding_strategies(), {"--fsdp_sharding_strategy"},
             "what is sharded (default: FULL_SHARD)", g);
  t.add(&in.reshard_after_forward, {"--fsdp_reshard_after_forward"},
        "version 2: release parameters after forward (default: true); version 1: a strategy's name", g);
  t.add_enum(&in.auto_wrap_policy, wrap_policies(), {"--fsdp_auto_wrap_policy"},
             "what becomes a unit (default: NO_WRAP; without a file TRANSFORMER_BASED_WRAP)", g);
  t.add(&in.transformer_layer_cls_to_wrap, {"--fsdp_transformer_layer_cls_to_wrap"},
        "class names, for TRANSFORMER_BASED_WRAP (default: those of the model)", g);
  t.add(&in.min_num_params, {"--fsdp_min_num_params"}, "parameters of a unit, for SIZE_BASED_WRAP (default: 1e8)", g);
  t.add_enum(&in.backward_prefetch, backward_prefetches(),
             {"--fsdp_backward_prefetch", "--fsdp_backward_prefetch_policy"},
             "when backward starts the next unit's gather, where gathers copy (default: BACKWARD_PRE; with a disk "
             "NO_PREFETCH)",
             g);
  t.add(&in.forward_prefetch, {"--fsdp_forward_prefetch"},
        "forward starts the next unit's gather early, where gathers copy (default: true; with a disk false)", g);
  t.add_enum(&in.state_dict_type, state_dict_types(), {"--fsdp_state_dict_type"},
             "form of checkpoints (default: FULL_STATE_DICT, version 2 SHARDED_STATE_DICT)", g);
  t.add(&in.offload_params, {"--fsdp_offload_params"}, "keep shards in host memory (default: false)", g);
  t.add(&in.offload_folder, {"--fsdp_offload_folder"},
        "folder on a disk for parameters and optimizer state, as memory-mapped files (default: none)", g);
  t.add(&in.use_orig_params, {"--fsdp_use_orig_params"}, "", g)
      .without_effect("frozen and trainable parameters always mix freely");
  t.add(&in.cpu_ram_efficient_loading, {"--fsdp_cpu_ram_efficient_loading"},
        "every rank always reads only its own bytes; true insists on fsdp_sync_module_states", g);
  t.add(&in.sync_module_states, {"--fsdp_sync_module_states"}, "what no file holds begins as on rank 0 (default: true)",
        g);
  t.add(&in.activation_checkpointing, {"--fsdp_activation_checkpointing"},
        "recompute activations in backward (default: false)", g);
  t.add(&in.ignored_modules, {"--fsdp_ignored_modules"},
        "regex of module names that stay whole on every rank, in their own precision", g);
  t.add(&in.shard_group_size, {"--fsdp_shard_group_size"},
        "ranks that share one copy of the model with HYBRID_SHARD (default: those of a host)", g);
}

}  // namespace

const Names<ShardingStrategy>& sharding_strategies() {
  static const Names<ShardingStrategy> names = {{"FULL_SHARD", ShardingStrategy::kFullShard},
                                                {"SHARD_GRAD_OP", ShardingStrategy::kShardGradOp},
                                                {"NO_SHARD", ShardingStrategy::kNoShard},
                                                {"HYBRID_SHARD", ShardingStrategy::kHybridShard},
                                                {"HYBRID_SHARD_ZERO2", ShardingStrategy::kHybridShardZero2}};
  return names;
}

void add_accelerate_options(OptionTable& table, AccelerateInput& input) {
  add_machine_options(table, input);
  add_fsdp_options(table, input);
}

std::string name_of(ShardingStrategy strategy) {
  return find_name(sharding_strategies(), strategy);
}
std::string name_of(WrapPolicy policy) {
  return find_name(wrap_policies(), policy);
}
std::string name_of(BackwardPrefetch prefetch) {
  return find_name(backward_prefetches(), prefetch);
}
std::string name_of(StateDictType type) {
  return find_name(state_dict_types(), type);
}
std::string name_of(MixedPrecision precision) {
  return find_name(mixed_precisions(), precision);
}

}  // namespace tessera::config
