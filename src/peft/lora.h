#pragma once
// LoRA as PEFT has it (Hu et al. 2021; rsLoRA: Kalajdzievski 2023). Adapters sit in slots of nn::Linear and
// nn::Embedding; the base is frozen. Parameter names in the module tree are PEFT's without the prefix
// "base_model.model.":
//   the base keeps its name "...q.weight" (files that say "...q.base_layer.weight" are read too);
//   adapters are "...q.lora_A.default.weight" [r, in] and "...q.lora_B.default.weight" [out, r].
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/model.h"

namespace tessera::peft {

struct LoraConfig {
  std::int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0.0;
  bool use_rslora = false;
  bool use_dora = false;
  std::string bias = "none";                // none | all | lora_only
  std::vector<std::string> target_modules;  // suffixes; empty: target_regex, then the family's defaults
  std::string target_regex;                 // full match; "all-linear" allowed in either field
  std::vector<std::string> exclude_modules, modules_to_save;
  std::vector<std::int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;  // names of the list that holds the layers; empty: any
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::string init_lora_weights = "true";  // true (Kaiming uniform A, zero B) | gaussian | false (both random)
  std::string task_type, base_model_name_or_path;
  bool inference_mode = false;
  double scaling(std::int64_t rank, double alpha) const;  // alpha/r, or alpha/sqrt(r)
};

struct LoraReport {
  std::vector<std::string> adapted;  // module names
  std::int64_t trainable = 0, total = 0;
  std::string trainable_line() const;  // "trainable params: 884,736 || all params: 223,788,288 || trainable%: 0.3953"
};

/// Freezes the model, puts initialised adapters (fp32, seeded by module name so that every rank and world size draws
/// the same) into the matching slots. ConfigError when a target matches nothing (lists the module names there are).
LoraReport apply_lora(nn::HookedModule& model, const models::ModelConfig& family, const LoraConfig& config,
                      std::uint64_t seed);

/// adapter_config.json of a folder. Unknown keys are ignored with a note in *notes; peft_type must be LORA.
LoraConfig read_adapter_config(const std::string& folder, std::vector<std::string>* notes = nullptr);
/// Values of adapter_model.safetensors (or .bin) into the adapters of apply_lora(), unsharded.
void load_adapter(nn::HookedModule& model, const std::string& folder);
/// Name in the module tree ("...q.lora_A.default.weight") -> name in adapter files, or "" if it is not part of an
/// adapter.
std::string adapter_file_name(const std::string& parameter_name);

/// adapter_config.json as PEFT writes it (json.dumps(indent=2, sort_keys=True)); target modules as resolved.
std::string adapter_config_json(const LoraConfig& config);

/// W += scaling * B A in fp32, for every adapted layer, and the adapters are removed; unsharded.
void merge_lora(nn::HookedModule& model);

}  // namespace tessera::peft
