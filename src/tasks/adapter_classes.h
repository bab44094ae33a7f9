#pragma once
// The classes of an adapter over a base without a head of classification (PEFT's task SEQ_CLS): its file keeps the
// head.
#include <optional>
#include <string>

#include "checkpoint/model_files.h"
#include "models/model.h"

namespace tessera::tasks {

/// By the names that training wrote beside it, else LABEL_0, LABEL_1, ... Nothing: the file keeps no head.
std::optional<checkpoint::ClassifierNames> adapter_classes(const std::string& adapter_folder);

/// The head to build for them.
models::ClassifierHead head_for(const checkpoint::ClassifierNames& classes);

}  // namespace tessera::tasks
