#pragma once
// What all of TRL's training scripts take (ModelConfig, ScriptArguments) without effect here, or what is refused.
#include "config/options.h"

namespace tessera::tasks {

void add_unused_trl_flags(config::OptionTable& table);

}  // namespace tessera::tasks
