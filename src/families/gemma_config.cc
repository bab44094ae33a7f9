// Gemma, Gemma 2, and the texts of Gemma 3.
#include <cmath>

#include "families/decoder_families.h"
#include "families/decoder_parse.h"
#include "families/llama_like.h"

namespace tessera::families {
namespace {

LlamaDefaults gemma_defaults(const std::string& prefix) {
  return {.class_prefix = prefix,
          .vocab_size = 256000,
          .hidden_size = 3072,
          .intermediate_size = 24576,
          .num_layers = 28,
          .num_heads = 16,
          .num_kv_heads = 16,
          .head_dim = 256,
          .max_positions = 8192,
          .pad_token_id = 0,
          .bos_token_id = 2,
          .eos_token_id = 1,
          .activation = "gelu_pytorch_tanh",
          .tied = true};
}

void set_gemma(const ConfigReader& in, DecoderConfig& c) {
  c.norm = NormKind::kRmsOffset;
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  c.embedding_scale_in_dtype = true;
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
}

// What those after the first have in common.

LlamaDefaults gemma2_defaults(const std::string& prefix) {
  auto defaults = gemma_defaults(prefix);
  defaults.hidden_size = 2304;
  defaults.intermediate_size = 9216;
  defaults.num_layers = 26;
  defaults.num_heads = 8;
  defaults.num_kv_heads = 4;
  return defaults;
}

void set_gemma2(const ConfigReader& in, DecoderConfig& c) {
  set_gemma(in, c);
  c.activation = parse_activation(in, "hidden_activation", "gelu_pytorch_tanh");
  c.names.after_attention = "post_attention_layernorm";
  c.names.mlp_norm = "pre_feedforward_layernorm";
  c.names.after_mlp = "post_feedforward_layernorm";
  const double scalar = in.get<double>("query_pre_attn_scalar", 256.0);
  c.attention_scale.assign(static_cast<std::size_t>(c.num_layers), std::pow(scalar, -0.5));
}

/// null: none.
double softcap_of(const ConfigReader& in, const char* key, double fallback) {
  return in.contains(key) ? in.get<double>(key, 0.0) : fallback;
}

}  // namespace

DecoderConfig parse_gemma(const ConfigReader& in) {
  auto c = llama_like(in, gemma_defaults("Gemma"));
  set_gemma(in, c);
  finish(in, c);
  return c;
}

DecoderConfig parse_gemma2(const ConfigReader& in) {
  auto c = llama_like(in, gemma2_defaults("Gemma2"));
  set_gemma2(in, c);
  c.attention_softcap = softcap_of(in, "attn_logit_softcapping", 50.0);
  c.logit_softcap = softcap_of(in, "final_logit_softcapping", 30.0);
  parse_layer_types(in, window_of(in, 4096), c, [](std::int64_t i) { return i % 2 == 0; });
  finish(in, c);
  return c;
}

// The model type of the published 270M and 1B, and of larger ones without their pictures.
DecoderConfig parse_gemma3(const ConfigReader& in) {
  auto defaults = gemma2_defaults("Gemma3");
  defaults.vocab_size = 262208;
  defaults.max_positions = 131072;
  defaults.rotary = {.theta = 1e6, .layer_type = "full_attention"};
  auto c = llama_like(in, defaults);
  set_gemma2(in, c);
  c.classes.base = "Gemma3TextModel";
  c.qk_norm = QkNorm::kHead;
  c.embedding_scales_itself = true;
  c.window_rotary = parse_rotary(in, c.head_dim, c.max_positions,
                                 {.theta_key = "rope_local_base_freq", .layer_type = "sliding_attention"});
  c.logit_softcap = softcap_of(in, "final_logit_softcapping", 0.0);
  for (const char* unread : {"attn_logit_softcapping", "_sliding_window_pattern"})
    (void)in.contains(unread);  // upstream
  const auto pattern = in.positive("sliding_window_pattern", 6);
  parse_layer_types(in, window_of(in, 4096), c, [&](std::int64_t i) { return (i + 1) % pattern != 0; });
  finish(in, c);
  return c;
}

}  // namespace tessera::families
