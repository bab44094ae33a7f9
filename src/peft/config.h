#pragma once
// The settings that PEFT's methods have in common.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::peft {

struct PeftConfig {
  // Methods that sit in layers:
  std::vector<std::string> target_modules;   // suffixes; empty: target_regex, then the method's defaults for the family
  std::string target_regex;                  // full match; "all-linear" allowed in either field
  std::vector<std::string> exclude_modules;  // suffixes
  std::string exclude_regex;                 // full match
  std::vector<std::int64_t> layers_to_transform;
  std::vector<std::string> layers_pattern;  // names of the list that holds the layers; empty: any
  std::string bias = "none";                // none | all | lora_only: those of adapted layers
  bool fan_in_fan_out = false;              // what the file says; how a weight lies is known from the module
  bool ensure_weight_tying = false;         // modules_to_save: a tied head stays tied to the table that trains
  // All methods:
  std::vector<std::string> modules_to_save;  // ends of module names
  /// Modules whose frozen weights the adapter file keeps: the embeddings of a resized vocabulary. A tied head's name is
  /// written with the embedding's values.
  std::vector<std::string> kept_embeddings;
  std::string task_type, base_model_name_or_path;
  std::string revision;  // of the base model on the Hub; empty: main
  bool inference_mode = false;
};

}  // namespace tessera::peft
