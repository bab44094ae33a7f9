#include "peft/methods/wide_targets.h"

#include <map>

namespace tessera::peft {

std::vector<std::string> wide_targets(const models::ModelConfig& family) {
  static const std::map<std::string, std::vector<std::string>> kMoreThanLora = {
      {"t5", {"q", "k", "v", "o", "wi", "wo"}},
      {"mt5", {"q", "k", "v", "o", "wi_0", "wi_1", "wo"}},
      {"opt", {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}},
      {"roberta", {"query", "key", "value", "dense"}},
  };
  const auto row = kMoreThanLora.find(family.model_type);
  return row == kMoreThanLora.end() ? family.default_lora_targets : row->second;
}

}  // namespace tessera::peft
