#pragma once
// What the families' config.json files have in common.
#include <string>

#include "families/config_reader.h"
#include "families/decoder_config.h"

namespace tessera::families {

/// An activation by transformers' name. ConfigError names the key, the value and the known names.
Activation parse_activation(const ConfigReader& in, const std::string& key, const std::string& fallback);

/// Sets num_heads, num_kv_heads and head_dim from the usual keys. ConfigError when they do not divide.
void parse_heads(const ConfigReader& in, DecoderConfig& config);

/// The same for families whose heads share hidden_size evenly: num_attention_heads alone is a key of theirs.
void parse_head_count(const ConfigReader& in, DecoderConfig& config);

/// ConfigError unless the file's head_dim, if there is one, is hidden_size / num_attention_heads: for families whose
/// attention does not read the key, but whose rotary frequencies do.
void require_equal_heads(const ConfigReader& in, const DecoderConfig& config);

/// The row of the token table that pad_token_id names; negative ids count from the table's end, as in torch. -1: none.
/// `fallback`: where the key is missing.
std::int64_t padding_row(const ConfigReader& in, std::int64_t fallback, std::int64_t rows);

/// Fills in what is the same for every layer where the family said nothing (scale 1 / sqrt(head_dim), no window), and
/// ids of special tokens. Call last.
void finish(const ConfigReader& in, DecoderConfig& config);

/// Windows by "layer_types" ("full_attention", "sliding_attention"), or `sliding(i)` without the key.
template <class Sliding>
void parse_layer_types(const ConfigReader& in, std::int64_t window, DecoderConfig& config, const Sliding& sliding) {
  const auto types = in.get<std::vector<std::string>>("layer_types", {});
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != config.num_layers) {
    throw ConfigError(in.file() + ": layer_types names " + std::to_string(types.size()) +
                          " layers, num_hidden_layers is " + std::to_string(config.num_layers),
                      "layer_types");
  }
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    if (!types.empty() && types[i] != "full_attention" && types[i] != "sliding_attention") {
      throw ConfigError(in.file() + ": layer_types '" + types[i] + "' is not full_attention or sliding_attention",
                        "layer_types");
    }
    if (!types.empty() && types[i] == "sliding_attention" && window == 0) {
      throw ConfigError(in.file() + ": layer_types has sliding_attention, but no sliding_window is given or used",
                        "layer_types");
    }
    const bool slides = types.empty() ? sliding(i) : types[i] == "sliding_attention";
    config.attention_window.push_back(slides ? window : 0);
  }
}

/// ConfigError when the key has another value than the one that this program computes with.
template <class T>
void require(const ConfigReader& in, const std::string& key, const T& expected, const std::string& why) {
  if (in.get<T>(key, expected) != expected) throw ConfigError(in.file() + ": '" + key + "' " + why, key);
}

}  // namespace tessera::families
