#pragma once
// What a model needs: as `accelerate estimate-memory` says it, and what a rank holds when it is fine-tuned here.
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "estimate/model_tensors.h"

namespace tessera::estimate {

struct EstimateOptions {
  std::string model;
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  int num_processes = 2;
  std::string mixed_precision = "no";
  std::string peft_type = "LORA";
  std::int64_t lora_r = 8;
  std::vector<std::string> lora_target_modules = {"all-linear"};  // name suffixes, or all-linear
  std::vector<std::string> feedforward_modules = {};              // IA3: those whose inputs are scaled
  std::int64_t num_virtual_tokens = 20;
};

/// Nothing: help was printed. ConfigError names the flag.
std::optional<EstimateOptions> parse_estimate(const std::vector<std::string>& args, std::ostream& out);

/// Both tables. ConfigError when no weight of a block matches lora_target_modules.
void print_estimate(const EstimateOptions& options, const std::vector<ModelTensor>& tensors, std::ostream& out);

}  // namespace tessera::estimate
