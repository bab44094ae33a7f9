#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/checkpoint_options.h"

namespace tessera::train {

/// A line for the log of a run that goes on: the flags that it has otherwise than the run before it, "--lora_alpha 64
/// (was 16)". settings: what its run.json will say; that of the other run is read. Empty where nothing differs or there
/// is no such file.
std::string changed_flags(const CheckpointOptions& options, const nlohmann::ordered_json& settings);

}  // namespace tessera::train
