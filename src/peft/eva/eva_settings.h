#pragma once
// eva_config of LoRA's configuration (Paischer et al. 2024), with PEFT's defaults.
#include <cstdint>
#include <nlohmann/json.hpp>

namespace tessera::peft {

struct EvaSettings {
  double rho = 2.0;            // a layer gets at most rho times the rank that it asks for
  double tau = 0.99;           // a component has converged when a batch turns it by less than this cosine
  bool use_label_mask = true;  // leaves tokens out whose label is label_mask_value
  std::int64_t label_mask_value = -100;
  bool whiten = false;                 // components over the roots of their singular values
  bool adjust_scaling_factors = true;  // alpha follows the rank, so that the scale stays
};

/// null: the defaults. ConfigError for unknown keys, and for values that are out of range.
EvaSettings read_eva_settings(const nlohmann::json& config);

}  // namespace tessera::peft
