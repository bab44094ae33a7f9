// adapter_config.json, as PEFT reads and writes it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "families/config_reader.h"
#include "peft/lora.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

using nlohmann::json;

// A list of T, or a single T.
template <class T>
std::vector<T> list_of(const families::ConfigReader& in, const json& document, const std::string& key) {
  if (!in.has(key)) return {};
  if (document[key].is_array()) return in.get<std::vector<T>>(key, {});
  return {in.template get<T>(key, T{})};
}

template <class T>
std::vector<std::pair<std::string, T>> pattern_of(const families::ConfigReader& in, const json& document,
                                                  const std::string& key) {
  std::vector<std::pair<std::string, T>> out;
  if (!in.has(key)) return out;
  if (!document[key].is_object()) throw ConfigError(in.file() + ": key '" + key + "' must be an object", key);
  for (const auto& [pattern, value] : document[key].items()) {
    if (!value.is_number()) throw ConfigError(in.file() + ": '" + key + "." + pattern + "' must be a number", key);
    out.emplace_back(pattern, value.template get<T>());
  }
  return out;
}

// Keys whose presence with another value than this would change the computation.
const json& unsupported_defaults() {
  static const json kDefaults = {
      {"lora_bias", false},           {"layer_replication", nullptr},       {"use_qalora", false},
      {"target_parameters", nullptr}, {"alora_invocation_tokens", nullptr}, {"trainable_token_indices", nullptr},
      {"use_bdlora", nullptr}};
  return kDefaults;
}

bool is_known(const std::string& key) {
  static const std::vector<std::string> kKnown = {"alpha_pattern",
                                                  "arrow_config",
                                                  "auto_mapping",
                                                  "base_model_name_or_path",
                                                  "bias",
                                                  "corda_config",
                                                  "ensure_weight_tying",
                                                  "eva_config",
                                                  "exclude_modules",
                                                  "fan_in_fan_out",
                                                  "inference_mode",
                                                  "init_lora_weights",
                                                  "kasa_config",
                                                  "layers_pattern",
                                                  "layers_to_transform",
                                                  "loftq_config",
                                                  "lora_alpha",
                                                  "lora_dropout",
                                                  "lora_ga_config",
                                                  "megatron_config",
                                                  "megatron_core",
                                                  "modules_to_save",
                                                  "monteclora_config",
                                                  "peft_type",
                                                  "peft_version",
                                                  "qalora_group_size",
                                                  "r",
                                                  "rank_pattern",
                                                  "revision",
                                                  "target_modules",
                                                  "task_type",
                                                  "use_dora",
                                                  "use_rslora",
                                                  "velora_config"};
  return std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end() || unsupported_defaults().contains(key);
}

json list_or_null(const auto& values) {
  return values.empty() ? json(nullptr) : json(values);
}

// Whole numbers as integers, as Python prints what a user gave.
json number(double value) {
  return value == static_cast<double>(static_cast<std::int64_t>(value)) ? json(static_cast<std::int64_t>(value))
                                                                        : json(value);
}

}  // namespace

LoraConfig read_adapter_config(const std::string& folder, std::vector<std::string>* notes) {
  const std::string file = folder + "/adapter_config.json";
  const auto document = families::read_json(file);
  const families::ConfigReader in(document, file);
  const auto type = in.get<std::string>("peft_type", "");
  if (type != "LORA") throw ConfigError(file + ": peft_type is '" + type + "'; only LORA is supported", "peft_type");
  for (const auto& [key, value] : document.items()) {
    if (!is_known(key) && notes) notes->push_back(file + ": unknown key '" + key + "' is ignored");
    const auto it = unsupported_defaults().find(key);
    if (it != unsupported_defaults().end() && value != *it && !value.is_null() && value != json(false)) {
      throw ConfigError(file + ": '" + key + "' is not supported with the value " + value.dump(), key);
    }
  }
  LoraConfig c;
  c.r = in.get<std::int64_t>("r", 8);
  c.lora_alpha = in.get<double>("lora_alpha", 8);
  c.lora_dropout = in.get<double>("lora_dropout", 0);
  c.use_rslora = in.get<bool>("use_rslora", false);
  c.use_dora = in.get<bool>("use_dora", false);
  c.bias = in.get<std::string>("bias", "none");
  if (in.has("target_modules") && document["target_modules"].is_string()) {
    c.target_regex = in.get<std::string>("target_modules", "");
  } else {
    c.target_modules = list_of<std::string>(in, document, "target_modules");
  }
  if (in.has("exclude_modules") && document["exclude_modules"].is_string()) {
    c.exclude_regex = in.get<std::string>("exclude_modules", "");
  } else {
    c.exclude_modules = list_of<std::string>(in, document, "exclude_modules");
  }
  c.fan_in_fan_out = in.get<bool>("fan_in_fan_out", false);
  c.modules_to_save = list_of<std::string>(in, document, "modules_to_save");
  c.layers_to_transform = list_of<std::int64_t>(in, document, "layers_to_transform");
  c.layers_pattern = list_of<std::string>(in, document, "layers_pattern");
  c.rank_pattern = pattern_of<std::int64_t>(in, document, "rank_pattern");
  c.alpha_pattern = pattern_of<double>(in, document, "alpha_pattern");
  if (in.has("init_lora_weights")) {
    const auto& init = document["init_lora_weights"];
    c.init_lora_weights =
        init.is_boolean() ? (init.get<bool>() ? "true" : "false") : in.get<std::string>("init_lora_weights", "");
  }
  c.task_type = in.get<std::string>("task_type", "");
  c.base_model_name_or_path = in.get<std::string>("base_model_name_or_path", "");
  c.inference_mode = in.get<bool>("inference_mode", false);
  return c;
}

std::string adapter_config_json(const LoraConfig& c) {
  json rank = json::object(), alpha = json::object();
  for (const auto& [pattern, value] : c.rank_pattern) rank[pattern] = value;
  for (const auto& [pattern, value] : c.alpha_pattern) alpha[pattern] = number(value);
  const json init = c.init_lora_weights == "true"    ? json(true)
                    : c.init_lora_weights == "false" ? json(false)
                                                     : json(c.init_lora_weights);
  const auto text_or_null = [](const std::string& text) { return text.empty() ? json(nullptr) : json(text); };
  const json document = {
      {"alpha_pattern", alpha},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", text_or_null(c.base_model_name_or_path)},
      {"bias", c.bias},
      {"eva_config", nullptr},
      {"exclude_modules", c.exclude_regex.empty() ? list_or_null(c.exclude_modules) : json(c.exclude_regex)},
      {"fan_in_fan_out", c.fan_in_fan_out},
      {"inference_mode", true},
      {"init_lora_weights", init},
      {"layer_replication", nullptr},
      {"layers_pattern", list_or_null(c.layers_pattern)},
      {"layers_to_transform", list_or_null(c.layers_to_transform)},
      {"loftq_config", json::object()},
      {"lora_alpha", number(c.lora_alpha)},
      {"lora_bias", false},
      {"lora_dropout", c.lora_dropout},
      {"megatron_config", nullptr},
      {"megatron_core", "megatron.core"},
      {"modules_to_save", list_or_null(c.modules_to_save)},
      {"peft_type", "LORA"},
      {"peft_version", "0.21.2"},
      {"r", c.r},
      {"rank_pattern", rank},
      {"revision", nullptr},
      {"target_modules", c.target_regex.empty() ? json(c.target_modules) : json(c.target_regex)},
      {"task_type", text_or_null(c.task_type)},
      {"use_dora", c.use_dora},
      {"use_rslora", c.use_rslora}};
  return document.dump(2);
}

}  // namespace tessera::peft
