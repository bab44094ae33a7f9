#pragma once
// A fine-tuning job as its flags describe it, and what a rank of it would hold.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/accelerate.h"
#include "estimate/device_memory.h"
#include "estimate/model_tensors.h"
#include "estimate/packed_bytes.h"
#include "estimate/rank_memory.h"

namespace tessera::estimate {

struct AdapterRequest {
  std::string peft_type = "LORA";
  std::int64_t lora_r = 8;
  std::vector<std::string> target_modules = {"all-linear"};  // name suffixes, or all-linear
  std::vector<std::string> feedforward_modules = {};         // IA3: those whose inputs are scaled
  std::int64_t num_virtual_tokens = 20;
  std::string peft_args = {};  // further settings of the method, "r=4,vector_length=64"
  bool has_virtual_tokens() const;
  bool in_layers() const;  // sits in matrices of blocks
};

/// PEFT's peft_type of every method that is counted.
std::vector<std::string> counted_methods();

struct PlanRequest {
  std::optional<AdapterRequest> adapter = {};  // none: all weights train
  std::optional<PackedBits> packed = {};       // linear layers of blocks are packed while they are read
  config::ShardingStrategy strategy = config::ShardingStrategy::kFullShard;
  int ranks = 2, hosts = 1;  // ranks of all hosts together
  std::string mixed_precision = "no";
  std::string optim = "adamw_torch", optim_args = {};
  std::vector<std::string> optim_target_modules = {"all-linear"};  // of GaLore and APOLLO
  BatchShape batch = {};
  bool on_disk = false;
  bool offload_params = false;  // with a GPU: slices, gradients and optimizer state stay in host memory

  /// Packed weights do not train.
  bool possible(const std::vector<ModelTensor>& tensors) const;
};

/// Every parameter as the job has it. ConfigError when no weight of a block matches the adapter's targets.
std::vector<SizedParameter> parameters_of(const PlanRequest& request, const std::vector<ModelTensor>& tensors);

RankPlan plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors);

/// Of a rank that computes on a GPU: what is on the GPU, and what in the host's memory beside it.
RankPlan device_plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors);
RankPlan host_plan_for(const PlanRequest& request, const std::vector<ModelTensor>& tensors);

/// Changes of flags, as the user types them, with the bytes that a rank then holds.
struct Remedy {
  std::vector<std::string> flags;
  std::int64_t bytes = 0;  // the program itself included
};
/// The fewest changes with which a rank stays below `budget_bytes`, program included: at most three ways, those that
/// cost the least speed first. Empty: none do.
std::vector<Remedy> ways_to_fit(const PlanRequest& request, const std::vector<ModelTensor>& tensors,
                                std::int64_t budget_bytes);

/// "--gradient_checkpointing true --load_in_4bit true: 11.2 GiB", one a line.
std::string remedy_lines(const std::vector<Remedy>& remedies);

}  // namespace tessera::estimate
