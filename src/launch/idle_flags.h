#pragma once
// The rest of accelerate launch's flags: those that change nothing here, and those that are refused.
#include "config/options.h"

namespace tessera::launch {

void add_idle_flags(config::OptionTable& table);

}  // namespace tessera::launch
