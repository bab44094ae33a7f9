#pragma once
// The rest of transformers' TrainingArguments (4.57): flags that change nothing here, and flags that are refused.
// Users' commands run as they are, and are told.
#include "config/options.h"

namespace tessera::train {

/// After the flags of the task: those that it has are left to it.
void add_idle_training_arguments(config::OptionTable& table);

}  // namespace tessera::train
