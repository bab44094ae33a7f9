#pragma once
// How many numbers an adapter of a method has, by formula (PEFT's shapes).
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "estimate/model_tensors.h"

namespace tessera::estimate {

/// A method's settings by the keys of adapter_config.json: "r=4, alpha=8". ConfigError: no KEY=VALUE.
std::map<std::string, std::string> parse_peft_args(const std::string& text);

/// The methods that sit in matrices of blocks, by peft_type.
std::vector<std::string> layer_methods();

/// What one adapted matrix [out, in] gains; args: the method's settings, its defaults where they are missing. inputs:
/// IA3 scales the inputs. ConfigError names a key that is no number.
std::int64_t layer_adapter_numel(const std::string& peft_type, const std::map<std::string, std::string>& args,
                                 const ModelTensor& matrix, bool inputs);

/// The layers as LoRA's layer_replication ("[[0, 4], [2, 5]]"; empty or null: as they are) stacks them, one that has
/// several places several times: what adapters and activations are counted by. ConfigError: no such layers.
std::vector<ModelTensor> at_places(const std::vector<ModelTensor>& tensors, const std::string& layer_replication);

/// P-tuning's MLP for embeddings of this length.
std::int64_t p_tuning_mlp_numel(const std::map<std::string, std::string>& args, std::int64_t dim);

/// What all layers share and trains.
std::int64_t shared_adapter_numel(const std::string& peft_type, const std::map<std::string, std::string>& args);

}  // namespace tessera::estimate
