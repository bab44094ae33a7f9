#pragma once
// Flags of packed base weights, by the names that PEFT's example, TRL and transformers give them.
#include <optional>
#include <string>
#include <vector>

#include "config/options.h"
#include "families/quantization.h"

namespace tessera::tasks {

struct QuantFlags {
  bool load_in_4bit = false, load_in_8bit = false;
  families::Quantization settings;
  std::vector<std::string> skip_modules = {};  // besides the output head
  bool packs() const { return load_in_4bit || load_in_8bit; }
  /// Nothing: weights stay as the folder has them.
  std::optional<families::Quantization> quantization() const;
};

void add_quant_flags(config::OptionTable& table, QuantFlags& flags, const std::string& group);
/// trains_adapter: over the weights, or nothing trains.
void check_quant_flags(const QuantFlags& flags, bool trains_adapter, config::Problems& problems);

}  // namespace tessera::tasks
