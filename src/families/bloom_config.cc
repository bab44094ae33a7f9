// BLOOM and Falcon: fused projections by key/value head, linear biases (Falcon's early and small models) or rotary.
#include <cmath>

#include "families/decoder_families.h"
#include "families/decoder_parse.h"

namespace tessera::families {
namespace {

DecoderConfig bloom_like(const ConfigReader& in, const std::string& prefix, const std::string& layer) {
  DecoderConfig c;
  c.model_type = in.get<std::string>("model_type", "");
  c.classes = {prefix + "ForCausalLM", prefix + "Model", layer, prefix + "Attention", prefix + "MLP", "LayerNorm"};
  c.norm = NormKind::kLayer;
  c.norm_eps = in.get<double>("layer_norm_epsilon", 1e-5);
  c.qkv = QkvLayout::kGrouped;
  c.mlp = MlpKind::kPlain;
  c.residual_dropout = in.get<double>("hidden_dropout", 0.0);
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  c.names.base = "transformer";
  c.names.embedding = "word_embeddings";
  c.names.layers = "h";
  c.names.final_norm = "ln_f";
  c.names.attention = "self_attention";
  c.names.qkv = "query_key_value";
  c.names.o = "dense";
  c.names.up = "dense_h_to_4h";
  c.names.down = "dense_4h_to_h";
  c.tied = in.get<bool>("tie_word_embeddings", true);
  c.pad_token_id = -1;
  c.lora_targets = {"query_key_value"};
  return c;
}

// Which norms a Falcon layer has, and how its residual runs.
void parse_falcon_form(const ConfigReader& in, bool is_new, DecoderConfig& c) {
  const bool parallel = in.get<bool>("parallel_attn", true);
  const auto norms = in.get<std::int64_t>("num_ln_in_parallel_attn", is_new ? 2 : 1);
  if ((is_new && !parallel) || (!is_new && parallel && norms == 2)) {
    throw ConfigError(in.file() +
                          ": new_decoder_architecture, parallel_attn and num_ln_in_parallel_attn do not go "
                          "together like this (transformers' Falcon fails on it, too)",
                      "num_ln_in_parallel_attn");
  }
  c.residual = parallel ? ResidualKind::kParallel : ResidualKind::kSequential;
  c.one_dropout_for_both = parallel;
  if (!parallel) return;
  c.names.attention_norm = norms == 2 ? "ln_attn" : "input_layernorm";
  c.names.mlp_norm = norms == 2 ? "ln_mlp" : "";
}

}  // namespace

DecoderConfig parse_bloom(const ConfigReader& in) {
  auto c = bloom_like(in, "Bloom", "BloomBlock");
  c.vocab_size = in.positive("vocab_size", 250880);
  c.hidden_size = in.positive("n_embed", in.positive("hidden_size", 64));
  c.num_layers = in.count("num_hidden_layers", in.count("n_layer", 2));
  c.num_heads = in.positive("n_head", 8);
  parse_head_count(in, c);
  c.intermediate_size = 4 * c.hidden_size;
  c.activation = Activation::kGeluTanh;
  c.position = PositionKind::kLinearBias;
  c.qkv_bias = c.o_bias = c.mlp_bias = true;
  if (in.get<bool>("slow_but_exact", false))
    require(in, "pretraining_tp", std::int64_t{1},
            "above 1 with slow_but_exact is not supported: sums of slices; set slow_but_exact to false");
  c.residual_after_norm = in.get<bool>("apply_residual_connection_post_layernorm", false);
  c.names.embedding_norm = "word_embeddings_layernorm";
  finish(in, c);
  return c;
}

DecoderConfig parse_falcon(const ConfigReader& in) {
  auto c = bloom_like(in, "Falcon", "FalconDecoderLayer");
  c.vocab_size = in.positive("vocab_size", 65024);
  c.hidden_size = in.positive("n_embed", in.positive("hidden_size", 4544));
  c.num_layers = in.count("num_hidden_layers", 32);
  c.num_heads = in.positive("num_attention_heads", 71);
  const bool is_new = in.get<bool>("new_decoder_architecture", false);
  const bool multi_query = in.get<bool>("multi_query", true);
  c.num_kv_heads = is_new || !multi_query ? in.positive("num_kv_heads", c.num_heads) : 1;
  if (!is_new && !multi_query) c.num_kv_heads = c.num_heads;
  c.prefix_of_query_heads = is_new;  // upstream repeats keys before it caches them
  parse_head_count(in, c);
  require_equal_heads(in, c);
  c.intermediate_size = in.positive("ffn_hidden_size", 4 * c.hidden_size);
  c.activation = parse_activation(in, "activation", "gelu");
  c.max_positions = in.positive("max_position_embeddings", 2048);
  c.qkv_bias = c.o_bias = c.mlp_bias = in.get<bool>("bias", false);
  if (in.get<bool>("alibi", false)) {
    c.position = PositionKind::kLinearBias;
    c.linear_bias_in_bfloat16 = true;
    // Upstream's eager code adds the bias to the scores and, scaled again, with the mask; its other code once.
    const bool twice = in.get<std::string>("attn_implementation", "") == "eager";
    c.linear_bias_factor = (twice ? 2.0 : 1.0) / std::sqrt(static_cast<double>(c.head_dim));
  } else {
    c.rotary = parse_rotary(in, c.head_dim, c.max_positions);
    c.attention_dropout = 0;  // upstream applies it with linear biases only
  }
  parse_falcon_form(in, is_new, c);
  c.bos_token_id = c.eos_token_id = 11;
  finish(in, c);
  return c;
}

}  // namespace tessera::families
