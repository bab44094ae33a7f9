#pragma once
// Flags of packed base weights, by the names that PEFT's example, TRL and transformers give them.
#include <optional>
#include <string>

#include "config/options.h"
#include "families/quantization.h"

namespace tessera::tasks {

struct QuantFlags {
  bool load_in_4bit = false;
  families::Quantization settings;
  /// Nothing: weights stay as the folder has them.
  std::optional<families::Quantization> quantization() const {
    return load_in_4bit ? std::optional(settings) : std::nullopt;
  }
};

void add_quant_flags(config::OptionTable& table, QuantFlags& flags, const std::string& group);

}  // namespace tessera::tasks
