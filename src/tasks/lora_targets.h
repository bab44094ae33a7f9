#pragma once
#include <string>
#include <vector>

#include "peft/lora.h"

namespace tessera::tasks {

/// --lora_target_modules: name suffixes, all-linear, or one regular expression.
void set_targets(peft::LoraConfig& lora, const std::vector<std::string>& words);

}  // namespace tessera::tasks
