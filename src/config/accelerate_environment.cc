#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/log.h"
#include "config/accelerate_input.h"
#include "config/yaml_writer.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

struct Variable {
  const char* name;
  const char* key;  // of the option table
};

constexpr Variable kVariables[] = {
    {"ACCELERATE_USE_FSDP", "use_fsdp"},
    {"ACCELERATE_MIXED_PRECISION", "mixed_precision"},
    {"ACCELERATE_USE_CPU", "use_cpu"},
    {"ACCELERATE_DEBUG_MODE", "debug"},
    {"FSDP_VERSION", "fsdp_version"},
    {"FSDP_SHARDING_STRATEGY", "fsdp_sharding_strategy"},
    {"FSDP_RESHARD_AFTER_FORWARD", "fsdp_reshard_after_forward"},
    {"FSDP_OFFLOAD_PARAMS", "fsdp_offload_params"},
    {"FSDP_AUTO_WRAP_POLICY", "fsdp_auto_wrap_policy"},
    {"FSDP_TRANSFORMER_CLS_TO_WRAP", "fsdp_transformer_layer_cls_to_wrap"},
    {"FSDP_MIN_NUM_PARAMS", "fsdp_min_num_params"},
    {"FSDP_BACKWARD_PREFETCH", "fsdp_backward_prefetch"},
    {"FSDP_FORWARD_PREFETCH", "fsdp_forward_prefetch"},
    {"FSDP_STATE_DICT_TYPE", "fsdp_state_dict_type"},
    {"FSDP_USE_ORIG_PARAMS", "fsdp_use_orig_params"},
    {"FSDP_CPU_RAM_EFFICIENT_LOADING", "fsdp_cpu_ram_efficient_loading"},
    {"FSDP_SYNC_MODULE_STATES", "fsdp_sync_module_states"},
    {"FSDP_ACTIVATION_CHECKPOINTING", "fsdp_activation_checkpointing"},
    {"FSDP_IGNORED_MODULES", "fsdp_ignored_modules"},
    {"FSDP_SHARD_GROUP_SIZE", "fsdp_shard_group_size"},
    {"FSDP_OFFLOAD_FOLDER", "fsdp_offload_folder"},
};

/// What another launcher may have asked for, and there is no code for.
struct ForeignVariable {
  const char* name;
  const char* instead;
};

constexpr ForeignVariable kForeignVariables[] = {
    {"ACCELERATE_USE_DEEPSPEED", "FSDP_SHARDING_STRATEGY is FULL_SHARD for its stage 3, SHARD_GRAD_OP for 2"},
    {"ACCELERATE_USE_MEGATRON_LM", "models are sharded by FSDP"},
    {"ACCELERATE_USE_PARALLELISM_CONFIG", "FSDP_SHARD_GROUP_SIZE says over how many ranks a model is sharded"}};

/// What another launcher may have asked for, and changes nothing here.
struct IdleVariable {
  const char* name;
  const char* why;
};

constexpr IdleVariable kIdleVariables[] = {
    {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
     "activations stay where they were computed; FSDP_ACTIVATION_CHECKPOINTING keeps fewer"}};

bool is_on(const char* name, const char* value) {
  const auto on = parse_bool(value);
  if (!on)
    throw ConfigError(fmt::format("environment variable {}: expected true or false, found '{}'", name, value), name);
  return *on;
}

void refuse_foreign(const std::function<const char*(const char*)>& get) {
  for (const auto& [name, instead] : kForeignVariables) {
    const char* value = get(name);
    if (value && parse_bool(value).value_or(false))
      throw ConfigError(fmt::format("environment variable {}: it is not supported; unset it ({})", name, instead),
                        name);
  }
}

/// accelerate's own launcher always exports FSDP_SHARDING_STRATEGY=FULL_SHARD; reshard_after_forward is then what the
/// user said.
void prefer_reshard(AccelerateInput& in) {
  const bool is_default = in.sharding_strategy == ShardingStrategy::kFullShard;
  if (in.reshard_after_forward && is_default) in.sharding_strategy.reset();
}

}  // namespace

AccelerateInput to_input(const AccelerateConfig& config) {
  AccelerateInput in;
  const FsdpConfig& f = config.fsdp;
  in.use_fsdp = config.use_fsdp;
  in.mixed_precision = config.mixed_precision;
  in.use_cpu = config.use_cpu;
  in.debug = config.debug;
  in.version = f.version;
  in.sharding_strategy = f.sharding_strategy;
  const bool is_full = f.sharding_strategy == ShardingStrategy::kFullShard;
  if (f.version == 1) {
    in.reshard_after_forward = name_of(f.sharding_strategy);
  } else if (is_full || f.sharding_strategy == ShardingStrategy::kShardGradOp) {
    in.reshard_after_forward = is_full ? "true" : "false";
  }
  in.offload_params = f.offload_params;
  in.auto_wrap_policy = f.auto_wrap_policy;
  in.transformer_layer_cls_to_wrap = f.transformer_layer_cls_to_wrap;
  if (f.auto_wrap_policy == WrapPolicy::kSizeBased) in.min_num_params = f.min_num_params;
  in.backward_prefetch = f.backward_prefetch;
  in.forward_prefetch = f.forward_prefetch;
  in.state_dict_type = f.state_dict_type;
  in.use_orig_params = f.use_orig_params;
  in.cpu_ram_efficient_loading = f.cpu_ram_efficient_loading;
  in.sync_module_states = f.sync_module_states;
  in.activation_checkpointing = f.activation_checkpointing;
  if (!f.ignored_modules.empty()) in.ignored_modules = f.ignored_modules;
  if (!f.offload_folder.empty()) in.offload_folder = f.offload_folder;
  if (f.shard_group_size != 0) in.shard_group_size = f.shard_group_size;
  return in;
}

std::vector<std::pair<std::string, std::string>> settings_of(const AccelerateConfig& config) {
  AccelerateInput in = to_input(config);
  OptionTable table("", "");
  add_accelerate_options(table, in);
  std::vector<std::pair<std::string, std::string>> out;
  for (const Variable& variable : kVariables) {
    const std::string text = table.text(variable.key);
    if (!text.empty()) out.emplace_back(variable.key, text);
  }
  return out;
}

Environment to_environment(const AccelerateConfig& config) {
  Environment out = settings_of(config);
  for (auto& [name, text] : out) {
    const auto of_key = [&, &key = name](const Variable& variable) { return key == variable.key; };
    name = std::find_if(std::begin(kVariables), std::end(kVariables), of_key)->name;
  }
  return out;
}

std::vector<std::string> idle_variables(const std::function<const char*(const char*)>& get) {
  std::vector<std::string> warnings;
  for (const auto& [name, why] : kIdleVariables) {
    const char* value = get(name);
    if (value != nullptr && *value != '\0' && is_on(name, value))
      warnings.push_back(fmt::format("environment variable {}={} has no effect: {}", name, value, why));
  }
  return warnings;
}

AccelerateConfig from_environment(const std::function<const char*(const char*)>& get) {
  AccelerateInput in;
  OptionTable table("tessera launch", "");
  add_accelerate_options(table, in);
  bool launched = false;
  const auto read = [&](const char* name, const char* key) {
    const char* value = get(name);
    if (value == nullptr || *value == '\0') return false;
    Node node;
    node.kind = Node::Kind::kScalar;
    node.text = value;
    return table.assign(key, node, fmt::format("environment variable {}: ", name));
  };
  refuse_foreign(get);
  for (const Variable& variable : kVariables) launched = read(variable.name, variable.key) || launched;
  prefer_reshard(in);
  read("WORLD_SIZE", "num_processes");
  if (!in.num_processes) in.num_processes = 1;
  std::vector<std::string> warnings;  // the launch has said them
  return resolve(in, "environment", launched, warnings);
}

AccelerateConfig from_environment() {
  const auto get = [](const char* name) { return static_cast<const char*>(std::getenv(name)); };
  static std::once_flag said;
  std::call_once(said, [&] {
    const auto warnings = idle_variables(get);
    const char* rank = get("RANK");
    if (rank != nullptr && std::string_view(rank) != "0") return;
    for (const auto& warning : warnings) log_warning(warning);
  });
  return from_environment(get);
}

nlohmann::json to_document(const AccelerateConfig& config) {
  AccelerateInput in = to_input(config);
  OptionTable table("", "");
  add_accelerate_options(table, in);
  nlohmann::json fsdp = nlohmann::json::object();
  for (const std::string& flag : table.names()) {
    const std::string key = flag.substr(2), text = table.text(flag);
    const bool said_by_reshard = config.fsdp.version == 2 && in.reshard_after_forward;
    const bool alias = key == "fsdp_backward_prefetch_policy" ||
                       key == (said_by_reshard ? "fsdp_sharding_strategy" : "fsdp_reshard_after_forward");
    const bool is_text =
        key == "fsdp_ignored_modules" || key == "fsdp_offload_folder" || key == "fsdp_transformer_layer_cls_to_wrap";
    if (key.starts_with("fsdp_") && !alias && !text.empty())
      fsdp[key] = is_text ? nlohmann::json(text) : typed_scalar(text);
  }
  nlohmann::json out = {{"compute_environment", "LOCAL_MACHINE"},
                        {"debug", config.debug},
                        {"distributed_type", config.use_fsdp ? "FSDP" : "MULTI_CPU"},
                        {"enable_cpu_affinity", config.enable_cpu_affinity},
                        {"fsdp_config", std::move(fsdp)},
                        {"machine_rank", config.machine_rank},
                        {"main_process_port", config.main_process_port},
                        {"mixed_precision", name_of(config.mixed_precision)},
                        {"num_machines", config.num_machines},
                        {"num_processes", config.num_processes},
                        {"use_cpu", config.use_cpu}};
  if (config.gpu_ids) out["gpu_ids"] = *config.gpu_ids;
  if (config.num_machines > 1 || config.main_process_ip != AccelerateConfig().main_process_ip)
    out["main_process_ip"] = config.main_process_ip;
  return out;
}

std::string to_yaml(const AccelerateConfig& config) {
  return to_yaml_text(to_document(config));
}

}  // namespace tessera::config
