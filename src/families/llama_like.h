#pragma once
#include <string>

#include "families/config_reader.h"
#include "families/decoder_config.h"

namespace tessera::families {

/// Defaults of transformers' config classes, for keys that config.json leaves out.
struct LlamaDefaults {
  std::string class_prefix = {};
  std::int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008;
  std::int64_t num_layers = 32, num_heads = 32;
  std::int64_t num_kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;      // 0: hidden_size / heads
  std::int64_t max_positions = 2048;
  double norm_eps = 1e-6;
  std::int64_t pad_token_id = -1, bos_token_id = 1, eos_token_id = 2;
  std::string activation = "silu";
  bool tied = false;
  RotaryKeys rotary = {};
};

/// The keys that Llama, Mistral, Mixtral, Qwen, Gemma, GLM, OLMo and Phi3 share. Call finish() after the rest is set.
DecoderConfig llama_like(const ConfigReader& in, const LlamaDefaults& defaults);

struct ExpertDefaults {
  const char* count_key = "num_experts";  // how many a layer has
  std::int64_t count, per_token;
  double auxiliary_coefficient = 0.001;  // of the router's loss
};

/// Every layer has experts, as wide as intermediate_size: their number, the router and its loss.
void parse_experts(const ConfigReader& in, const ExpertDefaults& defaults, DecoderConfig& config);

/// "sliding_window"; null: none (0).
std::int64_t window_of(const ConfigReader& in, std::int64_t fallback);

}  // namespace tessera::families
