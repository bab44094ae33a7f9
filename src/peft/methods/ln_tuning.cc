#include "peft/methods/ln_tuning.h"

#include "base/dotted_name.h"
#include "peft/targets.h"
#include "tessera/base/error.h"
#include "tessera/nn/norm.h"

namespace tessera::peft {
namespace {

/// PEFT's table (TRANSFORMERS_MODELS_TO_LNTUNING_TARGET_MODULES_MAPPING).
std::vector<std::string> default_norms(const std::string& model_type) {
  static const std::map<std::string, std::vector<std::string>> kNorms = {
      {"llama", {"input_layernorm", "post_attention_layernorm", "norm"}},
      {"mistral", {"input_layernorm", "post_attention_layernorm", "norm"}},
      {"gemma", {"input_layernorm", "post_attention_layernorm", "norm"}},
      {"gemma2",
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
        "norm"}},
      {"gemma3_text",
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
        "norm"}},
      {"bloom", {"input_layernorm", "post_attention_layernorm", "ln_f"}},
      {"falcon", {"input_layernorm", "post_attention_layernorm", "ln_f"}},
      {"t5", {"layer_norm", "final_layer_norm"}},
      {"mt5", {"layer_norm", "final_layer_norm"}},
      {"gpt2", {"ln_1", "ln_2", "ln_f"}},
      {"gptj", {"ln_1", "ln_f"}},
      {"phi", {"input_layernorm", "final_layernorm"}},
      {"qwen2", {"post_attention_layernorm"}},
      {"qwen3", {"post_attention_layernorm"}},
  };
  const auto row = kNorms.find(model_type);
  return row == kNorms.end() ? std::vector<std::string>() : row->second;
}

bool is_norm(const torch::nn::Module& module) {
  return dynamic_cast<const nn::RmsNorm*>(&module) || dynamic_cast<const nn::LayerNorm*>(&module);
}

}  // namespace

void LnTuning::bind(ConfigKeys& keys) {
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
}

void LnTuning::check() const {
  if (wants_all_linear(*this))
    throw ConfigError("target_modules: LN_TUNING trains norms, not linear layers; name the norms", "target_modules");
}

void LnTuning::resolve(const models::ModelConfig& family) {
  if (!target_modules.empty() || !target_regex.empty()) return;
  target_modules = default_norms(family.model_type);
  if (target_modules.empty()) {
    throw ConfigError("target_modules: model type '" + family.model_type +
                          "' has no default norms; name them (for example LayerNorm)",
                      "target_modules");
  }
}

std::vector<std::string> LnTuning::attach(models::Model& model, const models::ModelConfig&) {
  norms_.clear();
  std::set<std::string> known;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    const bool norm = is_norm(*item.value());
    if (norm) known.insert(last_part(item.key()));
    if (!is_target(item.key(), *this)) continue;
    if (!norm) {
      throw ConfigError("target_modules: '" + item.key() + "' is no norm; LN_TUNING trains norms only",
                        "target_modules");
    }
    norms_.insert(item.key());
  }
  if (norms_.empty()) {
    std::string names;
    for (const auto& name : known) names += (names.empty() ? "" : ", ") + name;
    const std::string wanted = target_modules.empty() ? target_regex : target_modules[0];
    throw ConfigError("target_modules: '" + wanted + "' matches no norm of this model; it has " + names,
                      "target_modules");
  }
  return {norms_.begin(), norms_.end()};
}

bool LnTuning::trains(const std::string& parameter) const {
  const auto dot = parameter.rfind('.');
  return dot != std::string::npos && norms_.contains(parameter.substr(0, dot));
}

std::string LnTuning::with_infix(const std::string& parameter, const std::string& infix) const {
  if (!trains(parameter)) return parameter;
  const auto dot = parameter.rfind('.');
  return parameter.substr(0, dot) + infix + parameter.substr(dot);
}

std::string LnTuning::name_in_peft(const std::string& parameter) const {
  return prefix() + with_infix(parameter, ".ln_tuning_layers.default");
}

std::string LnTuning::file_name(const std::string& parameter) const {
  return prefix() + with_infix(parameter, ".ln_tuning_layers");
}

}  // namespace tessera::peft
