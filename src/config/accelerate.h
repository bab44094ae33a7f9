#pragma once
// The settings of accelerate's config file (`accelerate config`, fsdp_config.yaml), resolved: what a launch and a rank
// run with.
//
//   flags and file ── AccelerateInput (as given) ── resolve() ──▶ AccelerateConfig ── to_environment() ──▶ ranks
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::config {

enum class ShardingStrategy { kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2 };
enum class WrapPolicy { kTransformerBased, kSizeBased, kNoWrap };
enum class BackwardPrefetch { kPre, kPost, kNone };
enum class StateDictType { kFull, kLocal, kSharded };
enum class MixedPrecision { kNo, kFp16, kBf16, kFp8 };

struct FsdpConfig {
  int version = 1;
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  WrapPolicy auto_wrap_policy = WrapPolicy::kNoWrap;
  std::vector<std::string> transformer_layer_cls_to_wrap;  // empty with kTransformerBased: the model's no-split classes
  std::int64_t min_num_params = 100'000'000;               // for kSizeBased; 0: no wrapping
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  StateDictType state_dict_type = StateDictType::kFull;
  bool offload_params = false;
  bool forward_prefetch = true;
  bool use_orig_params = true;
  bool cpu_ram_efficient_loading = true;
  bool sync_module_states = true;
  bool activation_checkpointing = false;
  std::string ignored_modules;  // regex over module names, empty: none
  std::string offload_folder;   // of memory-mapped files; empty: everything in memory. Ours
  int shard_group_size = 0;     // ranks that share a copy under HYBRID_*; 0: those of a host. Ours, not accelerate's

  bool operator==(const FsdpConfig&) const = default;
};

struct AccelerateConfig {
  bool use_fsdp = true;  // false: plain data parallelism (distributed_type NO, MULTI_CPU, MULTI_GPU)
  FsdpConfig fsdp;
  MixedPrecision mixed_precision = MixedPrecision::kNo;
  bool use_cpu = false;
  bool debug = false;
  int num_processes = 1;  // over all machines

  // Only a launch looks at these; from_environment() leaves the defaults.
  int num_machines = 1;  // each with num_processes / num_machines ranks
  int machine_rank = 0;
  std::optional<std::string> gpu_ids;
  std::string main_process_ip = "127.0.0.1";
  int main_process_port = 0;  // 0: a free one, with several machines 29500
  bool enable_cpu_affinity = false;

  bool operator==(const AccelerateConfig&) const = default;
};

/// A resolved configuration and what the user should be told about it (unindented keys, ignored settings, ...).
struct LoadedAccelerate {
  AccelerateConfig config;
  std::vector<std::string> warnings;
};

/// Reads, resolves and checks one file (.yaml, .yml, .json). ConfigError names file, line, key, the nearest known key,
/// or the contradiction and its remedy.
LoadedAccelerate load_accelerate(const std::string& path);

/// ${HF_HOME:-${XDG_CACHE_HOME:-~/.cache}/huggingface}/accelerate/default_config.yaml (or .json where only that
/// exists).
std::string default_accelerate_path();

using Environment = std::vector<std::pair<std::string, std::string>>;

/// What a rank is told, by the names of the file's keys; unset ones are left out.
std::vector<std::pair<std::string, std::string>> settings_of(const AccelerateConfig& config);

/// accelerate's variables (ACCELERATE_*, FSDP_*) for a rank's environment.
Environment to_environment(const AccelerateConfig& config);

/// What a rank reads back: the launch's configuration; without any such variable (torchrun, mpirun, SLURM) the default
/// one. `get` returns null for an unset variable. num_processes comes from WORLD_SIZE. ConfigError names a variable's
/// bad value.
AccelerateConfig from_environment(const std::function<const char*(const char*)>& get);
AccelerateConfig from_environment();  // of the process; rank 0 once says which variables have no effect

/// A file that `load_accelerate` reads back to the same configuration.
std::string to_yaml(const AccelerateConfig& config);

std::string name_of(ShardingStrategy strategy);
std::string name_of(WrapPolicy policy);
std::string name_of(BackwardPrefetch prefetch);
std::string name_of(StateDictType type);
std::string name_of(MixedPrecision precision);

}  // namespace tessera::config
