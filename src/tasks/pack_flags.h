#pragma once
// Flags of commands that write a model's folder with packed weights.
#include <optional>
#include <string>
#include <vector>

#include "config/options.h"
#include "families/quantization.h"

namespace tessera::tasks {

/// How a folder that is written packs its linear layers: `quantize`, `merge` and `export`.
struct PackFlags {
  std::string type;  // nf4, fp4, int8; empty: it is dense
  families::Quantization settings;
  std::vector<std::string> skip_modules = {};  // besides the output head
  /// head: the output head's name.
  std::optional<families::Quantization> quantization(const std::string& head, const std::string& dtype) const;
};
/// Leaves out --type where it is empty.
void add_pack_flags(config::OptionTable& table, PackFlags& flags);

}  // namespace tessera::tasks
