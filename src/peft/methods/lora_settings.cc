// LoRA's configuration: its keys, and which of their values go together.
#include <algorithm>

#include "peft/eva/eva_settings.h"
#include "peft/methods/lora.h"
#include "peft/methods/lora_starts.h"
#include "peft/replication/replicated_layers.h"
#include "tessera/base/error.h"

namespace tessera::peft {

[[noreturn]] void refuse_setting(const std::string& key, const std::string& why) {
  throw ConfigError("LoRA option '" + key + "' " + why, key);
}

std::int64_t Lora::rounds() const {
  const std::string start = "pissa_niter_";
  if (!init_lora_weights.starts_with(start)) return 0;
  const auto digits = init_lora_weights.substr(start.size());
  const bool number =
      !digits.empty() && digits.size() < 4 && digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoll(digits) : 0;
}

void Lora::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.whole_number("lora_alpha", lora_alpha);
  keys.number("lora_dropout", lora_dropout);
  keys.flag("use_rslora", use_rslora);
  keys.flag("use_dora", use_dora);
  keys.text("bias", bias);
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.integers("layers_to_transform", layers_to_transform);
  keys.names("layers_pattern", layers_pattern);
  keys.pattern("rank_pattern", rank_pattern);
  keys.pattern("alpha_pattern", alpha_pattern);
  keys.flag_or_word("init_lora_weights", init_lora_weights);
  keys.flag("lora_bias", lora_bias);
  keys.names("target_parameters", target_parameters);
  keys.any("trainable_token_indices", trainable_token_indices);
  keys.any("alora_invocation_tokens", alora_invocation_tokens);
  keys.any("loftq_config", loftq_config);
  keys.any("eva_config", eva_config);
  keys.any("layer_replication", layer_replication);
  keys.unsupported("use_qalora", false);
  keys.flag("ensure_weight_tying", ensure_weight_tying);
  for (const char* key : {"use_bdlora", "arrow_config", "kasa_config", "monteclora_config",
                          "velora_config"})  // these compute something else
    keys.unsupported(key, nullptr);
  for (const char* key : {"corda_config", "lora_ga_config", "megatron_config"})
    keys.ignored(key, nullptr);  // of init_lora_weights, or of others' modules
  keys.ignored("megatron_core", "megatron.core");
  keys.ignored("qalora_group_size", 16);
}

void Lora::check() const {
  LayerMethod::check();
  if (r <= 0) refuse_setting("r", "must be positive, found " + std::to_string(r));
  if (lora_dropout < 0 || lora_dropout > 1) refuse_setting("lora_dropout", "must be in [0, 1]");
  if (bias != "none" && bias != "all" && bias != "lora_only") refuse_setting("bias", "is one of none, all, lora_only");
  static const std::vector<std::string> kInits = {"true",  "false", "gaussian", "orthogonal", "pissa",
                                                  "olora", "loftq", "mica",     "eva"};
  const bool known = std::find(kInits.begin(), kInits.end(), init_lora_weights) != kInits.end() || rounds() > 0;
  if (init_lora_weights == "corda" || init_lora_weights == "lora_ga")
    refuse_setting("init_lora_weights",
                   "found '" + init_lora_weights +
                       "', which is not built here; PEFT can begin such an adapter and save it as plain LoRA "
                       "(path_initial_model_for_weight_conversion), and --adapter_name_or_path goes on with that");
  if (!known)
    refuse_setting(
        "init_lora_weights",
        "is one of true, false, gaussian, orthogonal, pissa, pissa_niter_N, olora, loftq, mica, eva; found '" +
            init_lora_weights + "'");
  if (init_lora_weights == "loftq") check_loftq(loftq_config);
  if (init_lora_weights == "eva") (void)read_eva_settings(eva_config);
  check_layer_replication(layer_replication);
  const bool alone = bias == "none" && target_parameters.empty() && !decomposes() && init_lora_weights != "eva";
  if (!layer_replication.is_null() && !alone)
    refuse_setting("layer_replication", "goes without bias, target_parameters, pissa, olora and eva");
  check_invocation(alora_invocation_tokens);
  const bool activated = !alora_invocation_tokens.is_null();
  if (activated && (use_dora || decomposes() || !target_parameters.empty() || !trainable_token_indices.is_null()))
    refuse_setting("alora_invocation_tokens",
                   "goes without use_dora, target_parameters, trainable_token_indices, pissa and olora");
  const bool plain_start = init_lora_weights == "true" || init_lora_weights == "false";
  if (lora_bias && (use_dora || !plain_start))
    refuse_setting("lora_bias", "goes with init_lora_weights true or false and without use_dora");
  if (use_dora && (decomposes() || mica()))
    refuse_setting("use_dora", "does not go with init_lora_weights " + init_lora_weights);
  if (!target_parameters.empty() && (lora_dropout > 0 || use_dora || lora_bias))
    refuse_setting("target_parameters", "goes without lora_dropout, use_dora and lora_bias, as in PEFT");
}

void Lora::check_new() const {
  if (init_lora_weights == "eva")
    refuse_setting(
        "init_lora_weights",
        "eva begins with what layers see of training rows: commands that train decoders or classifiers have them");
}

}  // namespace tessera::peft
