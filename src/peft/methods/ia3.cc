#include "peft/methods/ia3.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "nn/ops/remade.h"
#include "peft/targets.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

const std::string kVector = "ia3_l.default";

/// What the vector scales.
enum class Scales { kInputs, kOutputs };

class Ia3Linear : public nn::LinearAdapter {
 public:
  Ia3Linear(const nn::Linear& layer, Scales scales) : scales_(scales) {
    const bool inputs = scales == Scales::kInputs;
    const auto sizes =
        inputs ? std::vector<std::int64_t>{1, layer.in_features()} : std::vector<std::int64_t>{layer.out_features(), 1};
    vector_ = add_module("ia3_l", "ParameterDict").register_parameter("default", nn::make_parameter(sizes, at::kFloat));
  }
  std::string class_name() const override { return "ia3.Linear"; }
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override {
    if (scales_ == Scales::kInputs) {
      const auto rows = nn::remade(
          x.reshape({-1, x.size(-1)}), {vector_},
          [](const at::Tensor& kept, const auto& vector) { return (kept * vector[0]).to(kept.scalar_type()); });
      return layer.product(rows.view(x.sizes()));
    }
    const auto y = layer.product(x);
    return (y * vector_.flatten()).to(y.scalar_type());
  }

 private:
  Scales scales_;
  at::Tensor vector_;
};

/// PEFT's tables (TRANSFORMERS_MODELS_TO_IA3_*_MAPPING).
struct Defaults {
  const char* model_type;
  std::vector<std::string> targets, feedforward;
};

const Defaults* defaults_of(const models::ModelConfig& family) {
  static const std::vector<Defaults> kDefaults = {
      {"t5", {"k", "v", "wo"}, {"wo"}},
      {"mt5", {"k", "v", "wi_1"}, {}},
      {"gpt2", {"c_attn", "mlp.c_proj"}, {"mlp.c_proj"}},
      {"bloom", {"query_key_value", "mlp.dense_4h_to_h"}, {"mlp.dense_4h_to_h"}},
      {"roberta", {"key", "value", "output.dense"}, {"output.dense"}},
      {"bert", {"key", "value", "output.dense"}, {"output.dense"}},
      {"deberta", {"in_proj", "output.dense"}, {"output.dense"}},
      {"deberta-v2", {"key_proj", "value_proj", "output.dense"}, {"output.dense"}},
      {"opt", {"q_proj", "k_proj", "fc2"}, {"fc2"}},
      {"gptj", {"q_proj", "v_proj", "fc_out"}, {"fc_out"}},
      {"gpt_neox", {"query_key_value", "dense_4h_to_h"}, {"dense_4h_to_h"}},
      {"gpt_neo", {"q_proj", "v_proj", "c_proj"}, {"c_proj"}},
      {"gpt_bigcode", {"c_attn", "mlp.c_proj"}, {"mlp.c_proj"}},
      {"phi", {"q_proj", "v_proj", "fc2"}, {"fc2"}},
      {"falcon", {"query_key_value", "dense_4h_to_h"}, {"dense_4h_to_h"}},
      {"llama", {"k_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"mistral", {"k_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"mixtral", {"k_proj", "v_proj", "w2"}, {"w2"}},
      {"gemma", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"gemma2", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"gemma3_text", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"qwen2", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
      {"qwen3", {"q_proj", "v_proj", "down_proj"}, {"down_proj"}},
  };
  const auto it = std::find_if(kDefaults.begin(), kDefaults.end(),
                               [&](const Defaults& row) { return family.model_type == row.model_type; });
  return it == kDefaults.end() ? nullptr : &*it;
}

}  // namespace

void Ia3::bind(ConfigKeys& keys) {
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.names_or_regex("feedforward_modules", feedforward_modules, feedforward_regex);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.flag("init_ia3_weights", init_ia3_weights);
}

void Ia3::check() const {
  LayerMethod::check();
  if (target_modules.empty() || !feedforward_modules) return;
  for (const auto& name : *feedforward_modules) {
    if (std::find(target_modules.begin(), target_modules.end(), name) == target_modules.end())
      throw ConfigError("feedforward_modules: '" + name + "' is not among target_modules; it must be one of them",
                        "feedforward_modules");
  }
}

std::vector<std::string> Ia3::default_targets(const models::ModelConfig& family) const {
  const auto* row = defaults_of(family);
  return row ? row->targets : std::vector<std::string>();
}

void Ia3::resolve(const models::ModelConfig& family) {
  LayerMethod::resolve(family);
  if (feedforward_modules || !feedforward_regex.empty()) return;
  const auto* row = defaults_of(family);
  if (!row) {
    throw ConfigError("feedforward_modules: model type '" + family.model_type +
                          "' has no default; name them (an empty list: there are none)",
                      "feedforward_modules");
  }
  feedforward_modules = row->feedforward;
}

// PEFT compares ends of names here without a dot in front.
bool Ia3::is_feedforward(const std::string& module) const {
  if (!feedforward_regex.empty()) return Pattern(feedforward_regex, "feedforward_modules").matches(module);
  return feedforward_modules && std::any_of(feedforward_modules->begin(), feedforward_modules->end(),
                                            [&](const auto& end) { return module.ends_with(end); });
}

void Ia3::attach_to(const Slot& slot) const {
  if (!slot.linear) {
    throw ConfigError("target_modules: '" + slot.name + "' is an embedding, which IA3 does not scale; leave it out",
                      "target_modules");
  }
  const auto scales = is_feedforward(slot.name) ? Scales::kInputs : Scales::kOutputs;
  slot.linear->attach(std::make_shared<Ia3Linear>(*slot.linear, scales));
}

std::map<std::string, Fill> Ia3::first_values_of(const Slot& slot, std::uint64_t seed) const {
  if (init_ia3_weights) return {{kVector, [](const at::Tensor& t) { t.fill_(1); }}};
  return {{kVector, [key = tensor::named_key(seed, slot.name + ".ia3_l")](const at::Tensor& t) {
             tensor::fill_normal(t, key, 0.0, 1.0);
           }}};
}

at::Tensor Ia3::merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                       const Values& adapter) const {
  const auto vector = adapter.at(kVector).detach().to(at::kFloat);
  const auto scaled = [&](const at::Tensor& by) { return (value.to(at::kFloat) * by).to(value.scalar_type()); };
  if (leaf == "weight") return scaled(slot.transposed() ? vector.t() : vector);
  return is_feedforward(slot.name) ? value : scaled(vector.flatten());
}

}  // namespace tessera::peft
