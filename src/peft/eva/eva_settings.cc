#include "peft/eva/eva_settings.h"

#include "base/json_text.h"
#include "families/config_reader.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

[[noreturn]] void refuse_eva(const std::string& why) {
  throw ConfigError("LoRA option 'eva_config' " + why, "eva_config");
}

}  // namespace

EvaSettings read_eva_settings(const nlohmann::json& config) {
  EvaSettings out;
  if (config.is_null()) return out;
  if (!config.is_object()) refuse_eva("is an object such as {\"rho\": 2.0, \"tau\": 0.99}; found " + json_text(config));
  const families::ConfigReader in(config, "eva_config");
  out.rho = in.get("rho", out.rho);
  out.tau = in.get("tau", out.tau);
  out.use_label_mask = in.get("use_label_mask", out.use_label_mask);
  out.label_mask_value = in.get("label_mask_value", out.label_mask_value);
  out.whiten = in.get("whiten", out.whiten);
  out.adjust_scaling_factors = in.get("adjust_scaling_factors", out.adjust_scaling_factors);
  for (const auto& item : config.items())
    if (!in.asked_for(item.key())) {
      refuse_eva("has the unknown key '" + item.key() +
                 "'; there are rho, tau, use_label_mask, label_mask_value, whiten and adjust_scaling_factors");
    }
  if (out.rho < 1) refuse_eva("needs a rho of at least 1, found " + std::to_string(out.rho));
  if (out.tau < 0 || out.tau > 1) refuse_eva("needs a tau in [0, 1], found " + std::to_string(out.tau));
  return out;
}

}  // namespace tessera::peft
