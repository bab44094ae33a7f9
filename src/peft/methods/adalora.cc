#include "peft/methods/adalora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "base/json_text.h"
#include "nn/ops/lora_linear.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

const std::string kA = "lora_A.default", kE = "lora_E.default", kB = "lora_B.default";

/// PEFT's table (TRANSFORMERS_MODELS_TO_ADALORA_TARGET_MODULES_MAPPING).
std::vector<std::string> targets_of(const std::string& model_type) {
  static const std::map<std::string, std::vector<std::string>> kTargets = {
      {"t5", {"q", "k", "v", "o", "wi", "wo"}},
      {"mt5", {"q", "k", "v", "o", "wi_0", "wi_1", "wo"}},
      {"gpt2", {"c_attn"}},
      {"bloom", {"query_key_value"}},
      {"opt", {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}},
      {"gptj", {"q_proj", "v_proj"}},
      {"gpt_neox", {"query_key_value"}},
      {"gpt_neo", {"q_proj", "v_proj"}},
      {"gpt_bigcode", {"c_attn"}},
      {"llama", {"q_proj", "v_proj"}},
      {"bert", {"query", "value"}},
      {"roberta", {"query", "key", "value", "dense"}},
      {"deberta", {"in_proj"}},
      {"deberta-v2", {"query_proj", "key_proj", "value_proj", "dense"}},
      {"gemma", {"q_proj", "v_proj"}},
      {"gemma2", {"q_proj", "v_proj"}},
      {"gemma3_text", {"q_proj", "v_proj"}},
      {"qwen2", {"q_proj", "v_proj"}},
      {"qwen3", {"q_proj", "v_proj"}},
  };
  const auto found = kTargets.find(model_type);
  return found == kTargets.end() ? std::vector<std::string>() : found->second;
}

/// The list of a layer; null: there is none. Keys of PEFT's running models end with the adapter's name.
nlohmann::json pattern_of(const nlohmann::json& pattern, const std::string& layer) {
  if (pattern.is_null()) return nullptr;
  for (const char* end : {".lora_E", ".lora_E.default"})
    if (const auto found = pattern.find(layer + end); found != pattern.end()) return *found;
  return nullptr;
}

void check_pattern(const nlohmann::json& pattern) {
  if (pattern.is_null()) return;
  const auto is_list = [](const nlohmann::json& list) {
    return list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& kept) { return kept.is_boolean(); });
  };
  if (!pattern.is_object() || !std::all_of(pattern.begin(), pattern.end(), is_list)) {
    throw ConfigError(
        "rank_pattern of ADALORA is an object of lists of true and false, which ranks of a layer are "
        "kept; found " +
            json_text(pattern),
        "rank_pattern");
  }
}

}  // namespace

void AdaLora::bind(ConfigKeys& keys) {
  keys.integer("init_r", init_r);
  keys.integer("target_r", target_r);
  keys.integer("tinit", tinit);
  keys.integer("tfinal", tfinal);
  keys.integer("deltaT", delta_t);
  keys.optional_integer("total_step", total_step);
  keys.number("beta1", beta1);
  keys.number("beta2", beta2);
  keys.number("orth_reg_weight", orth_reg_weight);
  auto written = pattern();
  keys.any("rank_pattern", written);
  if (kept_.empty()) rank_pattern_ = written;
  keys.integer("r", r);
  keys.whole_number("lora_alpha", lora_alpha);
  keys.number("lora_dropout", lora_dropout);
  keys.flag_or_word("init_lora_weights", init_lora_weights);
  keys.text("bias", bias);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.unsupported("use_dora", false);
  keys.flag("ensure_weight_tying", ensure_weight_tying);
  for (const char* key :
       {"trainable_token_indices", "target_parameters", "layer_replication", "alora_invocation_tokens", "use_bdlora"})
    keys.unsupported(key, nullptr);
  // LoRA's, which PEFT keeps here without using them.
  keys.ignored("use_rslora", false);
  keys.ignored("lora_bias", false);
  keys.ignored("use_qalora", false);
  keys.ignored("alpha_pattern", nlohmann::json::object());
  for (const char* key : {"arrow_config", "corda_config", "eva_config", "kasa_config", "lora_ga_config",
                          "megatron_config", "monteclora_config", "velora_config"})
    keys.ignored(key, nullptr);
  keys.ignored("loftq_config", nlohmann::json::object());
  keys.ignored("megatron_core", "megatron.core");
  keys.ignored("qalora_group_size", 16);
}

void AdaLora::check() const {
  FactorMethod::check();
  require_positive("init_r", init_r);
  require_positive("deltaT", delta_t);
  require_probability("lora_dropout", lora_dropout);
  const auto refuse = [](const std::string& key, const std::string& why) {
    throw ConfigError("ADALORA: " + key + " " + why, key);
  };
  if (!(orth_reg_weight >= 0))
    refuse("orth_reg_weight", "must not be negative, found " + std::to_string(orth_reg_weight));
  for (const auto& [key, beta] : {std::pair{"beta1", beta1}, std::pair{"beta2", beta2}})
    if (!(beta > 0 && beta < 1)) refuse(key, "must be in (0, 1), found " + std::to_string(beta));
  if (target_r < 0) refuse("target_r", "must not be negative, found " + std::to_string(target_r));
  if (tinit < 0) refuse("tinit", "must not be negative, found " + std::to_string(tinit));
  if (tfinal < 0) refuse("tfinal", "must not be negative, found " + std::to_string(tfinal));
  check_pattern(rank_pattern_);
  if (total_step > 0) check_schedule();
}

void AdaLora::check_schedule() const {
  if (total_step > 0 && tinit < total_step - tfinal) return;
  throw ConfigError("ADALORA: with total_step " + std::to_string(total_step) + ", tinit " + std::to_string(tinit) +
                        " and tfinal " + std::to_string(tfinal) +
                        " no step is left in which ranks fall; lower tinit or tfinal, or raise total_step",
                    "total_step");
}

std::vector<std::string> AdaLora::default_targets(const models::ModelConfig& family) const {
  return targets_of(family.model_type);
}

std::int64_t AdaLora::rank_of(const std::string& layer) const {
  const auto list = pattern_of(rank_pattern_, layer);
  return list.is_null() ? init_r : std::count(list.begin(), list.end(), true);
}

std::vector<std::string> AdaLora::attach(models::Model& model, const models::ModelConfig& family) {
  penalty_ = std::make_shared<OrthogonalPenalty>(orth_reg_weight, family.kind);
  auto names = FactorMethod::attach(model, family);
  penalty_->set_factors(2 * static_cast<std::int64_t>(names.size()));
  model.set_input_adapter(penalty_);
  for (const auto& name : names) {
    ranks_[name] = rank_of(name);
    if (allocates()) kept_[name] = at::full({ranks_[name]}, -1, at::TensorOptions().dtype(at::kFloat));
  }
  return names;
}

std::vector<AddedTensor> AdaLora::added(const LayerSizes& layer) const {
  const auto rank = rank_of(layer.name);
  const bool zero = init_lora_weights != "false";
  const auto factor = normal(zero ? 0.02 : 1.0);
  return {{kA, {rank, layer.in}, factor}, {kE, {rank, 1}, zero ? zeros() : factor}, {kB, {layer.out, rank}, factor}};
}

DeltaFactors AdaLora::factors(const LayerSizes&, const Tensors& t) const {
  const auto a = penalty_->on(t[0], OrthogonalPenalty::Side::kRows);
  const auto b = penalty_->on(t[2], OrthogonalPenalty::Side::kColumns);
  // In float32, as there; init_r also where fewer ranks are left.
  const float divisor = static_cast<float>(init_r) + 1e-5F;
  const double alpha = lora_alpha > 0 ? lora_alpha : static_cast<double>(init_r);
  return {a * t[1], b, alpha / static_cast<double>(divisor), lora_dropout};
}

at::Tensor AdaLora::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                           const Tensors& t) const {
  if (t[1].numel() == 0) return layer.product(x);  // no rank is left
  // The penalty's part of a factor's gradient is that of this pass, so they are made in it and not in backward.
  const auto f = factors(sizes, t);
  return nn::lora_linear(x, layer.handle(), layer.bias, {f.a, f.b, f.scaling, layer.is_training() ? f.dropout : 0.0});
}

at::Tensor AdaLora::selected(const std::string& layer) const {
  const auto found = kept_.find(layer);
  if (found == kept_.end() || found->second.lt(0).any().item<bool>()) return {};
  return found->second.eq(1).nonzero().flatten();
}

nlohmann::json AdaLora::pattern() const {
  if (kept_.empty()) return rank_pattern_;
  nlohmann::json out;
  for (const auto& [layer, kept] : kept_) {
    if (!selected(layer).defined()) return nullptr;
    auto& list = out[layer + ".lora_E"] = nlohmann::json::array();
    for (std::int64_t i = 0; i < kept.numel(); ++i) list.push_back(kept[i].item<float>() == 1);
  }
  return out;
}

std::vector<std::string> AdaLora::file_names(const std::string& parameter) const {
  const auto layer = parameter.substr(0, parameter.rfind(".lora_"));
  return selected(layer).defined() ? std::vector<std::string>() : FactorMethod::file_names(parameter);
}

Values AdaLora::in_file(const Values& adapters) const {
  Values out;
  for (const auto& [layer, kept] : kept_) {
    const auto ranks = selected(layer);
    if (!ranks.defined()) continue;
    for (const auto& name : {kA, kE, kB}) {
      const auto parameter = layer + "." + name;
      out[file_name(parameter)] = adapters.at(parameter).index_select(name == kB ? 1 : 0, ranks).contiguous();
    }
  }
  return out;
}

}  // namespace tessera::peft
