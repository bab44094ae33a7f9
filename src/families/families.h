#pragma once
// The model families: config.json -> sizes and names. A family is one line in families.cc. Nothing here needs libtorch.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "families/bert_config.h"
#include "families/blueprint.h"
#include "families/config_reader.h"
#include "families/decoder_config.h"
#include "families/t5_config.h"

namespace tessera::families {

using FamilyConfig = std::variant<T5Config, DecoderConfig, BertConfig>;

struct Family {
  std::string model_type;
  FamilyConfig (*parse)(const ConfigReader& in);
};

const std::vector<Family>& families();

/// What config.json says, by its model_type; `file` is its path, for messages. ConfigError for an unknown type (lists
/// the known and names the nearest) and for what the family's code cannot compute. note: gets a line about keys that
/// nobody here knows, or nothing.
FamilyConfig parse_config(const nlohmann::json& json, const std::string& file, std::string* note = nullptr);

/// The modules of the model and their parameters.
Blueprint blueprint_of(const FamilyConfig& config);

/// As safetensors spells it, "BF16".
const std::string& stored_dtype_of(const FamilyConfig& config);

}  // namespace tessera::families
