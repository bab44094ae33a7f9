#pragma once
// PEFT's layer_replication: [[0, 4], [2, 5]] makes a stack of the layers 0 1 2 3 2 3 4. A layer is there once, with its
// frozen weights, and runs at several places; adapters are of the places, which are numbered as PEFT numbers its
// layers.
#include <nlohmann/json.hpp>
#include <string>

#include "models/model.h"

namespace tessera::peft {

/// Null, or a list of ranges [first, end). ConfigError for anything else.
void check_layer_replication(const nlohmann::json& ranges);

/// ConfigError for models whose layers PEFT would not find either, and for layers that there are not.
void replicate_layers(models::Model& model, const nlohmann::json& ranges);

/// A parameter of a layer that may run at several places.
bool is_replicated(const std::string& parameter);

/// "model.layers.2.mlp.up_proj.places.4.lora_A.default.weight" as PEFT's module tree has it:
/// "model.layers.4.mlp.up_proj .lora_A.default.weight". Other names are what they are.
std::string name_at_place(const std::string& parameter);

}  // namespace tessera::peft
