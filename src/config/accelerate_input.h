#pragma once
// The settings as the user gave them: unset stays unset, so that flags win over the file and contradictions can be told
// from defaults.
#include <nlohmann/json_fwd.hpp>

#include "config/accelerate.h"
#include "config/options.h"

namespace tessera::config {

struct AccelerateInput {
  std::optional<std::string> distributed_type, compute_environment, dynamo_backend;
  std::optional<bool> use_fsdp, use_cpu, debug, enable_cpu_affinity, same_network;
  std::optional<int> num_processes, num_machines, machine_rank, main_process_port;
  std::optional<std::string> gpu_ids, main_process_ip, rdzv_backend, main_training_function;
  std::optional<MixedPrecision> mixed_precision;

  std::optional<int> version;
  std::optional<ShardingStrategy> sharding_strategy;
  std::optional<std::string> reshard_after_forward;  // v1: a strategy's name, v2: a boolean
  std::optional<WrapPolicy> auto_wrap_policy;
  std::vector<std::string> transformer_layer_cls_to_wrap;
  std::optional<std::int64_t> min_num_params;
  std::optional<BackwardPrefetch> backward_prefetch;
  std::optional<StateDictType> state_dict_type;
  std::optional<bool> offload_params, forward_prefetch, use_orig_params, cpu_ram_efficient_loading, sync_module_states,
      activation_checkpointing;
  std::optional<std::string> ignored_modules, offload_folder;
  std::optional<int> shard_group_size;
  int dp_replicate_size = 1, dp_shard_size = 1;  // of parallelism_config: how version 2 says hybrid sharding
};

/// Every key of the file as a flag of `table`, bound to `input`.
void add_accelerate_options(OptionTable& table, AccelerateInput& input);

/// Assigns what the file says; appends to `warnings`.
void read_accelerate_file(const std::string& path, AccelerateInput& input, std::vector<std::string>& warnings);
void read_accelerate_document(const Node& document, const std::string& name, AccelerateInput& input,
                              std::vector<std::string>& warnings);

/// Flags replace what they contradict in the file: a strategy its reshard_after_forward, a wrap policy its class list.
void drop_overridden(const OptionTable& flags, AccelerateInput& from_file);

/// Fills in the defaults and checks combinations; `source` (a file or "the command line") begins the messages.
/// `has_file`: a file must say num_processes; without one it is 1, fully sharded, wrapped by the model's layers.
AccelerateConfig resolve(const AccelerateInput& input, const std::string& source, bool has_file,
                         std::vector<std::string>& warnings);

/// The inverse of resolve(), for writing a configuration down.
AccelerateInput to_input(const AccelerateConfig& config);

/// The same as a document: that of to_yaml().
nlohmann::json to_document(const AccelerateConfig& config);

const std::vector<std::pair<std::string, std::optional<ShardingStrategy>>>& sharding_strategies();

/// Warnings about variables of accelerate's that are set and have no effect. ConfigError names a bad value.
std::vector<std::string> idle_variables(const std::function<const char*(const char*)>& get);

}  // namespace tessera::config
