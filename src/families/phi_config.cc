// Phi (1, 1.5 and 2) and StableLM: layer norms, and a part of each head that turns.
#include "families/decoder_families.h"
#include "families/decoder_parse.h"
#include "families/llama_like.h"

namespace tessera::families {
namespace {

/// llama_like() with layer norms; `part`: of a head that turns; qk_norm: what qk_layernorm switches on.
DecoderConfig layer_norm_like(const ConfigReader& in, LlamaDefaults d, double part, QkNorm qk_norm) {
  d.rotary = {.part = part, .parts = RotaryKeys::Part::kAny};
  auto c = llama_like(in, d);
  c.norm = NormKind::kLayer;
  c.norm_eps = in.get<double>("layer_norm_eps", 1e-5);
  c.classes.norm = "LayerNorm";
  c.names.q_norm = "q_layernorm";
  c.names.k_norm = "k_layernorm";
  if (in.get<bool>("qk_layernorm", false)) c.qk_norm = qk_norm;
  return c;
}

}  // namespace

DecoderConfig parse_phi(const ConfigReader& in) {
  auto c = layer_norm_like(in,
                           {.class_prefix = "Phi",
                            .vocab_size = 51200,
                            .hidden_size = 2048,
                            .intermediate_size = 8192,
                            .num_layers = 24,
                            .activation = "gelu_new"},
                           0.5, QkNorm::kHead);
  c.residual = ResidualKind::kParallel;
  c.qkv_bias = c.o_bias = c.mlp_bias = c.head_bias = true;
  c.mlp = MlpKind::kPlain;
  c.embedding_dropout = in.get<double>("embd_pdrop", 0.0);
  c.residual_dropout = in.get<double>("resid_pdrop", 0.0);
  c.names.final_norm = "final_layernorm";
  c.names.o = "dense";
  c.names.up = "fc1";
  c.names.down = "fc2";
  c.names.mlp_norm = "";
  c.lora_targets = {"q_proj", "v_proj", "fc1", "fc2"};
  finish(in, c);
  return c;
}

DecoderConfig parse_stablelm(const ConfigReader& in) {
  auto c = layer_norm_like(in,
                           {.class_prefix = "StableLm",
                            .vocab_size = 50304,
                            .hidden_size = 2560,
                            .intermediate_size = 6912,
                            .num_kv_heads = 32,
                            .max_positions = 4096,
                            .bos_token_id = 0,
                            .eos_token_id = 0},
                           0.25, QkNorm::kOwnHead);
  require_equal_heads(in, c);
  c.qkv_bias = in.get<bool>("use_qkv_bias", false);
  c.residual_dropout = in.get<double>("hidden_dropout", 0.0);
  c.mlp_alone_drops = true;
  if (in.get<bool>("use_parallel_residual", false)) {
    c.residual = ResidualKind::kParallel;
    c.names.mlp_norm = "";
  }
  finish(in, c);
  return c;
}

}  // namespace tessera::families
