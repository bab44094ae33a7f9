#pragma once
// Which modules get an adapter: PEFT's rules (BaseTuner._check_target_module_exists, check_target_module_exists).
#include <string>
#include <vector>

#include "peft/lora.h"

namespace tessera::peft {

/// "all-linear" in any case, in either field.
bool wants_all_linear(const LoraConfig& config);

/// The config with the family's defaults filled in when it names no target.
LoraConfig with_default_targets(LoraConfig config, const models::ModelConfig& family);

/// True for the name of a parameter or module inside one of modules_to_save.
bool is_saved(const std::string& name, const LoraConfig& config);

/// True for the full name of a module that the config targets. ConfigError for a bad regular expression.
bool is_target(const std::string& name, const LoraConfig& config);

/// True when `name` is `key` or ends with "." + key.
bool has_suffix(const std::string& name, const std::string& key);

/// The first pattern whose key (a regular expression, at the end of the name after a dot or the whole of it) matches,
/// or fallback.
std::int64_t rank_of(const std::string& name, const LoraConfig& config);
double alpha_of(const std::string& name, const LoraConfig& config);

}  // namespace tessera::peft
