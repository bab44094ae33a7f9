// OLMo, OLMo 2 and OLMoE.
#include "families/decoder_families.h"
#include "families/decoder_parse.h"
#include "families/llama_like.h"

namespace tessera::families {
namespace {

DecoderConfig olmo_like(const ConfigReader& in, const std::string& class_prefix, LlamaDefaults d = {}) {
  d.class_prefix = class_prefix;
  d.vocab_size = 50304;
  d.norm_eps = 1e-5;
  d.pad_token_id = 1;
  d.bos_token_id = -1;
  d.eos_token_id = 50279;
  auto c = llama_like(in, d);
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  return c;
}

double clip_of(const ConfigReader& in) {
  const auto clip = in.get<double>("clip_qkv", 0.0);
  if (clip < 0 || (clip == 0 && in.has("clip_qkv")))
    throw ConfigError(in.file() + ": clip_qkv must be positive, or null", "clip_qkv");
  return clip;
}

}  // namespace

DecoderConfig parse_olmo(const ConfigReader& in) {
  auto c = olmo_like(in, "Olmo");
  c.norm = NormKind::kLayer;
  c.norm_eps = 1e-5;
  c.norm_affine = false;
  c.classes.norm = "OlmoLayerNorm";
  c.clip_qkv = clip_of(in);
  finish(in, c);
  return c;
}

DecoderConfig parse_olmo2(const ConfigReader& in) {
  auto c = olmo_like(in, "Olmo2");
  c.qk_norm = QkNorm::kAll;
  c.names.attention_norm = c.names.mlp_norm = "";
  c.names.after_attention = "post_attention_layernorm";
  c.names.after_mlp = "post_feedforward_layernorm";
  finish(in, c);
  return c;
}

DecoderConfig parse_olmoe(const ConfigReader& in) {
  auto c = olmo_like(
      in, "Olmoe",
      {.hidden_size = 2048, .intermediate_size = 2048, .num_layers = 16, .num_heads = 16, .max_positions = 4096});
  require_equal_heads(in, c);
  c.qk_norm = QkNorm::kAll;
  c.clip_qkv = clip_of(in);
  c.classes.experts = "OlmoeSparseMoeBlock";
  parse_experts(in, {.count = 64, .per_token = 8, .auxiliary_coefficient = 0.01}, c);
  c.experts.normalised = in.get<bool>("norm_topk_prob", false);
  finish(in, c);
  return c;
}

}  // namespace tessera::families
