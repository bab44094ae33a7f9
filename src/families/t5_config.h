#pragma once
#include <cstdint>
#include <string>

#include "base/layer_kinds.h"
#include "families/config_reader.h"

namespace tessera::families {

/// What config.json says of a T5, mT5 or umT5 (names and defaults: transformers' T5Config).
struct T5Config {
  std::string class_prefix = "T5";  // T5Block, MT5Block, UMT5Block
  std::int64_t vocab_size = 32128, d_model = 512, d_kv = 64, d_ff = 2048, num_heads = 8;
  std::int64_t num_layers = 6, num_decoder_layers = 6;
  std::int64_t relative_buckets = 32, relative_max_distance = 128;
  double dropout = 0.1, norm_eps = 1e-6, initializer_factor = 1.0;
  Activation activation = Activation::kRelu;
  bool gated = false;
  bool tied = true;                  // the output head is shared.weight
  bool scales_head = true;           // its input is scaled by d_model^-0.5
  bool bias_in_every_layer = false;  // umT5
  std::int64_t pad_token_id = 0, eos_token_id = 1, decoder_start_token_id = 0;
  std::string stored_dtype = "F32";  // as safetensors spells it
  bool operator==(const T5Config&) const = default;
};

/// ConfigError names the key and the file for a wrong type, a size that is not positive, or an activation there is no
/// code for.
T5Config parse_t5_config(const ConfigReader& in);

/// Since version 5 transformers writes of every T5 that its head is tied, also where the weights hold a head.
bool ties_by_weights(const ConfigReader& in);

}  // namespace tessera::families
