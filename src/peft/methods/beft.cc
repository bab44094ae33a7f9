#include "peft/methods/beft.h"

#include <ATen/TensorOperators.h>

#include "tessera/base/error.h"

namespace tessera::peft {

void Beft::bind(ConfigKeys& keys) {
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.flag("init_weights", init_weights);
}

std::vector<std::string> Beft::default_targets(const models::ModelConfig& family) const {
  const auto& type = family.model_type;
  if (type == "t5" || type == "mt5") return {"v"};
  if (type == "bert" || type == "roberta") return {"value"};
  if (type == "deberta-v2") return {"value_proj"};
  for (const char* known : {"opt", "gptj", "gpt_neo", "llama", "mistral", "mixtral", "phi", "gemma", "gemma2",
                            "gemma3_text", "qwen2", "qwen3"})
    if (type == known) return {"v_proj"};
  return {};
}

std::vector<AddedTensor> Beft::added(const LayerSizes& layer) const {
  return {{"beft_bias.default", {1, layer.out}, init_weights ? zeros() : normal(1)}};
}

at::Tensor Beft::output(const nn::Linear& layer, const LayerSizes&, const at::Tensor& x, const Tensors& t) const {
  const auto y = layer.product(x);
  return (y + t[0].flatten()).to(y.scalar_type());
}

void Beft::check_can_merge(const nn::HookedModule& adapted) const {
  for (const auto& slot : adapted_slots(adapted)) {
    if (slot.bias().defined()) continue;
    throw ConfigError("the layer '" + slot.name +
                          "' has no bias, into which BEFT merges (as in PEFT); use the adapter beside its base model",
                      "target_modules");
  }
}

at::Tensor Beft::merged_weight(const LayerSizes&, const at::Tensor& w, const Tensors&) const {
  return w;
}

at::Tensor Beft::merged_bias(const at::Tensor& b, const Tensors& t) const {
  return b + t[0].flatten();
}

}  // namespace tessera::peft
