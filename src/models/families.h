#pragma once
// Which model_type is built by what. A family is one line in families.cc.
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/model.h"

namespace tessera::models {

struct FamilyInput {
  const nlohmann::json& json;  // config.json
  std::string file;            // its path, for messages
  at::ScalarType dtype = at::kFloat;
};

struct Family {
  std::string model_type;
  /// Builds the modules without memory and fills in the config (all but model_type and folder).
  std::shared_ptr<Model> (*build)(const FamilyInput& in, ModelConfig& config);
};

const std::vector<Family>& families();

/// ConfigError that lists the known types and names the nearest.
const Family& find_family(const std::string& model_type, const std::string& file);

}  // namespace tessera::models
