#pragma once
// Several LoRA adapters of one base model become one, as PEFT's LoraModel.add_weighted_adapter makes it. Only the
// adapters' files are read, a layer at a time; the base model is not needed.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "peft/combine/task_arithmetic.h"

namespace tessera::peft {

struct WeightedAdapter {
  std::string name;     // for messages, and for what DARE draws
  std::string folder;   // PEFT's
  double weight = 1.0;  // may be negative
};

struct CombineOptions {
  std::vector<WeightedAdapter> adapters;
  /// linear, ties, dare_linear, dare_ties, magnitude_prune: of A and of B, each by itself; the ranks must be equal
  /// cat: exact, the ranks add up
  /// svd and the former with "_svd": of the products B A, cut to a rank again
  std::string combination_type = "svd";
  std::optional<std::int64_t> svd_rank = {};  // unset: the largest of the adapters'
  std::optional<double> svd_clamp = {};       // a quantile: larger values of the new A and B are cut to it
  std::optional<double> density = {};         // of ties, dare and magnitude_prune
  MajoritySign majority_sign = MajoritySign::kTotal;
  std::uint64_t seed = 0;       // of dare
  std::string base_model = {};  // what all are for; empty: their configurations must name the same one
};

struct CombineReport {
  std::int64_t modules = 0, rank = 0;
  std::string combination_type;  // what was done: a single adapter is always "linear"
  std::vector<std::string> notes;
};

/// "svd", "linear", ...
const std::vector<std::string>& combination_types();
/// Whether density (and a seed) counts.
bool prunes(const std::string& combination_type);

/// Writes adapter_config.json and adapter_model.safetensors (float32) into `output`, an existing folder. Scaling is 1
/// everywhere: alpha = r, as PEFT has it, and use_rslora off, where PEFT keeps the first adapter's and so multiplies
/// the result by sqrt(r). A module that some adapters lack takes what the others have. modules_to_save of one adapter
/// stay as they are. ConfigError or DataError: adapters that are no LoRA, or of different bases, shapes or ranks; DoRA,
/// biases, trained tokens, target_parameters and what changes the base (PiSSA, OLoRA).
CombineReport combine_lora(const CombineOptions& options, const std::string& output);

}  // namespace tessera::peft
