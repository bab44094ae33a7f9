#pragma once
// LoRA as PEFT has it (Hu et al. 2021; rsLoRA: Kalajdzievski 2023; DoRA: Liu et al. 2024). Adapters sit in slots of
// nn::Linear and nn::Embedding; the base is frozen. Parameter names in the module tree are PEFT's without the prefix
// "base_model.model.":
//   the base keeps its name "...q.weight" (files that say "...q.base_layer.weight" are read too);
//   adapters are "...q.lora_A.default.weight" [r, in], "...q.lora_B.default.weight" [out, r], with DoRA
//   "...q.lora_magnitude_vector.default.weight" [out]; of embeddings "...lora_embedding_A.default" [r, num] and
//   "...lora_embedding_B.default" [dim, r];
//   modules_to_save are trained in place: no frozen copy is kept, the adapter file holds the trained values.
#include <cstdint>
#include <functional>
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
  std::string bias = "none";                 // none | all | lora_only
  std::vector<std::string> target_modules;   // suffixes; empty: target_regex, then the family's defaults
  std::string target_regex;                  // full match; "all-linear" allowed in either field
  std::vector<std::string> exclude_modules;  // suffixes
  std::string exclude_regex;                 // full match
  std::vector<std::string> modules_to_save;  // ends of module names
  /// Modules whose frozen weights the adapter file keeps: the embeddings of a resized vocabulary. A tied head's name is
  /// written with the embedding's values.
  std::vector<std::string> kept_embeddings;
  std::vector<std::int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;  // names of the list that holds the layers; empty: any
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  /// true (Kaiming uniform A, zero B; embeddings: zero A, normal B) | gaussian (normal A, zero B) | false (both random)
  std::string init_lora_weights = "true";
  bool fan_in_fan_out = false;  // what the file says; how a weight lies is known from the module
  std::string task_type, base_model_name_or_path;
  bool inference_mode = false;
  double scaling(std::int64_t rank, double alpha) const;  // alpha/r, or alpha/sqrt(r)
};

struct LoraReport {
  std::vector<std::string> adapted;  // module names
  std::vector<std::string> saved;    // those of modules_to_save
  LoraConfig config;                 // as given, with everything resolved that depends on the model
  bool untied = false;               // the output head got a matrix of its own
  std::int64_t trainable = 0;
  std::int64_t total = 0;              // with a frozen copy of each of modules_to_save, as PEFT counts
  std::string trainable_line() const;  // "trainable params: 884,736 || all params: 223,788,288 || trainable%: 0.3953"
};

/// Freezes the model, puts adapters (fp32, without memory yet) into the matching slots, and makes biases and
/// modules_to_save trainable. ConfigError when a name matches nothing (lists the module names there are).
LoraReport apply_lora(nn::HookedModule& model, const models::ModelConfig& family, const LoraConfig& config);

/// Gives a parameter of an adapter, by its name, memory and its first values, seeded by module name so that every rank
/// and world size draws the same; leaves others alone: fsdp::FsdpOptions::param_init_fn. DoRA's magnitudes need the
/// weights: see initialise_magnitudes.
std::function<void(const std::string&, const at::Tensor&)> adapter_init(const nn::HookedModule& model,
                                                                        const LoraConfig& config, std::uint64_t seed);

/// Magnitudes of DoRA adapters become the norms of W + scaling B A; unsharded, after the weights were loaded.
void initialise_magnitudes(nn::HookedModule& model);

/// adapter_config.json of a folder. Unknown keys are ignored with a note in *notes; peft_type must be LORA.
LoraConfig read_adapter_config(const std::string& folder, std::vector<std::string>* notes = nullptr);
/// adapter_config.json as PEFT writes it (json.dumps(indent=2, sort_keys=True)); target modules as resolved.
std::string adapter_config_json(const LoraConfig& config);

}  // namespace tessera::peft
