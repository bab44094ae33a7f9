#pragma once
// The adapters that are combined: their files, and which layers and other tensors they hold.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peft/methods/lora.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {

struct LoraInput {
  std::string name, folder;
  Lora config;
  std::shared_ptr<io::TensorSource> source = {};
};

/// A layer's factors in one adapter.
struct LoraShare {
  std::size_t input = 0;  // its number
  std::int64_t rank = 0;
  double scaling = 1.0;
};

struct LoraPlace {
  std::string a, b;  // names of the tensors in the files
  std::int64_t in = 0, out = 0;
  std::vector<LoraShare> shares = {};  // in the order of the adapters
};

/// Every layer that some adapter adapts, by module name ("model.layers.0.self_attn.q_proj"), and every other tensor
/// with the number of the adapter that it comes from.
struct LoraLayers {
  std::map<std::string, LoraPlace> layers;
  std::map<std::string, std::size_t> others;
};

/// The folder's adapter. ConfigError where it is no LoRA, or one that cannot be combined (combine_lora.h says which).
LoraInput open_lora(const std::string& name, const std::string& folder);

/// ConfigError or DataError where a layer has other sizes in two adapters, two hold other values of one tensor that is
/// not combined, or a file is not what its configuration says.
LoraLayers lora_layers(const std::vector<LoraInput>& inputs);

}  // namespace tessera::peft
