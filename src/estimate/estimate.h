#pragma once
// What a model needs: as `accelerate estimate-memory` says it, and what a rank holds when it is fine-tuned here.
#include <cstdint>
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
  std::string optim = "adamw_torch";
  std::int64_t per_device_train_batch_size = 1, max_seq_length = 512;
  bool gradient_checkpointing = false;
  bool load_in_4bit = false, use_nested_quant = false, load_in_8bit = false;
  std::string max_memory;  // of a rank, "24GB"; empty: none is given
};

/// Nothing: help was printed. ConfigError names the flag.
std::optional<EstimateOptions> parse_estimate(const std::vector<std::string>& args, std::ostream& out);

/// Both tables. ConfigError when no weight of a block matches lora_target_modules.
void print_estimate(const EstimateOptions& options, const std::vector<ModelTensor>& tensors, std::ostream& out);

}  // namespace tessera::estimate
