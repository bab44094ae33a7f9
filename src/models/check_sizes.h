#pragma once
// config.json beside the headers of the weights, before anything is built.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::io {
class TensorSource;
}

namespace tessera::models {

/// config.json of a folder, with what only its weights tell: whether a newer T5 has a head of its own, and a newer BERT
/// absolute positions.
nlohmann::json read_described_config(const std::string& folder);

/// ConfigError where a tensor of the source has another shape than config.json gives it, and where one of the two has
/// more layers or experts than the other: names the keys, the tensor and both shapes. DataError where a GGUF file has a
/// tensor that its model does not use. Other missing tensors are left to those who read.
void check_sizes(const std::string& folder, const io::TensorSource& source);

}  // namespace tessera::models
