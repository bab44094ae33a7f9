#pragma once
// What a model needs: as `accelerate estimate-memory` says it, and what a rank holds when it is fine-tuned here.
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "estimate/plan_request.h"

namespace tessera::estimate {

struct EstimateOptions {
  std::string model;
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  int num_processes = 2;
  std::string mixed_precision = "no";
  AdapterRequest adapter;
  int num_machines = 1;
  std::string optim = "adamw_torch", optim_args;
  std::vector<std::string> optim_target_modules = {"all-linear"};
  std::int64_t per_device_train_batch_size = 1, max_seq_length = 512;
  std::int64_t max_target_length = 0;  // of an encoder-decoder model; 0: as max_seq_length
  bool gradient_checkpointing = false;
  bool load_in_4bit = false, use_nested_quant = false, load_in_8bit = false;
  std::string device = "auto";
  bool fsdp_offload_params = false;
  std::string device_memory;                                           // of a GPU; empty: none is given
  std::string max_memory;                                              // of a rank, "24GB"; empty: none is given
  std::string link;                                                    // of a host, "25GB/s"; empty: no step times
  std::string latency = "50us", flops_per_rank, memory_rate_per_rank;  // empty: measured
  int gradient_accumulation_steps = 1;
  bool sync_each_batch = false;
  bool on_gpu() const { return device == "cuda"; }
  int ranks_per_host() const { return num_processes / num_machines; }
};

/// Nothing: help was printed. ConfigError names the flag.
std::optional<EstimateOptions> parse_estimate(const std::vector<std::string>& args, std::ostream& out);

/// What a rank's cores do: rates of products and of memory.
struct RankRates {
  double flops = 0, memory = 0;
};
/// By measuring, with so many ranks at once.
using MeasureRates = std::function<RankRates(int ranks, const std::string& mixed_precision)>;

/// All tables. `measure` is asked where step times are wanted and a rate of the ranks is not given. ConfigError when no
/// weight of a block matches lora_target_modules.
void print_estimate(const EstimateOptions& options, const std::vector<ModelTensor>& tensors, std::ostream& out,
                    const MeasureRates& measure = nullptr);

}  // namespace tessera::estimate
