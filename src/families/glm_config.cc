// GLM (of GLM-4 9B) and GLM 4 (of GLM-4 0414).
#include "families/decoder_families.h"
#include "families/decoder_parse.h"
#include "families/llama_like.h"

namespace tessera::families {
namespace {

DecoderConfig glm_like(const ConfigReader& in, const std::string& class_prefix) {
  auto c = llama_like(in, {.class_prefix = class_prefix,
                           .vocab_size = 151552,
                           .intermediate_size = 13696,
                           .num_layers = 40,
                           .num_kv_heads = 2,
                           .head_dim = 128,
                           .max_positions = 131072,
                           .norm_eps = 1.5625e-7,
                           .pad_token_id = 151329,
                           .bos_token_id = -1,
                           .eos_token_id = 151329,
                           .rotary = {.part = 0.5, .parts = RotaryKeys::Part::kAny}});
  c.rotary.pairs = RotaryPairs::kNeighbours;
  c.qkv_bias = in.get<bool>("attention_bias", true);
  c.mlp = MlpKind::kGatedFused;
  c.names.gate = "gate_up_proj";
  return c;
}

}  // namespace

DecoderConfig parse_glm(const ConfigReader& in) {
  auto c = glm_like(in, "Glm");
  finish(in, c);
  return c;
}

DecoderConfig parse_glm4(const ConfigReader& in) {
  auto c = glm_like(in, "Glm4");
  c.names.after_attention = "post_self_attn_layernorm";
  c.names.after_mlp = "post_mlp_layernorm";
  finish(in, c);
  return c;
}

}  // namespace tessera::families
