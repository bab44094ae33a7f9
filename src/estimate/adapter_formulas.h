#pragma once
// How many numbers an adapter of a method has, by formula (PEFT's shapes), and what a step holds for it.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "estimate/model_tensors.h"

namespace tessera::estimate {

/// A method's settings by the keys of adapter_config.json: "r=4, alpha=8". ConfigError names the
/// flag: no KEY=VALUE.
std::map<std::string, std::string> parse_peft_args(const std::string& text, const std::string& flag = "peft_args");

/// The methods that sit in matrices of blocks, by peft_type.
std::vector<std::string> layer_methods();

struct AdaptedLayer {
  std::int64_t in, out;
  bool scales_inputs = false;  // IA3, in place of the outputs
};

/// What one adapted layer gains; args: the method's settings, its defaults where they are missing. ConfigError names a
/// key that is no number.
std::int64_t layer_adapter_numel(const std::string& peft_type, const std::map<std::string, std::string>& args,
                                 const AdaptedLayer& layer);

struct LayerBatch {
  std::int64_t tokens;
  std::int64_t element_bytes;  // of the computation, 4 or 2
};

/// What a step holds for one adapted layer beside what it holds for the layer alone, parameters and their gradients
/// apart. Measured by MethodMemory (tests/unit/tasks).
struct AdapterBytes {
  std::int64_t kept = 0;           // from forward to backward
  std::int64_t kept_by_input = 0;  // the same, once for all layers that get the same input
  std::int64_t working = 0;        // more, while the layer's backward runs
  bool reads_input = false;        // in backward, as the layer's own matrix does where it trains
};
/// All zero for methods that do not sit in layers.
AdapterBytes layer_adapter_bytes(const std::string& peft_type, const std::map<std::string, std::string>& args,
                                 const AdaptedLayer& layer, const LayerBatch& batch);

/// Of a prompt: how many of its virtual tokens go through the layers like a row's own.
std::int64_t tokens_in_front(const std::string& peft_type, std::int64_t num_virtual_tokens);

/// How many tokens have rows of their own; args: token_indices. ConfigError where that is no list of them.
std::int64_t token_count(const std::map<std::string, std::string>& args);

/// P-tuning's MLP for embeddings of this length.
std::int64_t p_tuning_mlp_numel(const std::map<std::string, std::string>& args, std::int64_t dim);

/// What all adapted layers share.
struct SharedNumel {
  std::int64_t trainable = 0, frozen = 0;
};
SharedNumel shared_adapter_numel(const std::string& peft_type, const std::map<std::string, std::string>& args,
                                 const std::vector<AdaptedLayer>& layers);

}  // namespace tessera::estimate
