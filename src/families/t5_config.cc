#include "families/t5_config.h"

#include "families/decoder_parse.h"

namespace tessera::families {
namespace {

// "relu", "gated-gelu", ...: gated-gelu means gelu_new. Explicit dense_act_fn and is_gated_act win, as upstream.
void parse_feed_forward(const ConfigReader& in, const std::string& fallback, T5Config& config) {
  const auto projection = in.get<std::string>("feed_forward_proj", fallback);
  const auto dash = projection.find('-');
  if (dash != std::string::npos && projection.substr(0, dash) != "gated") {
    throw ConfigError(in.file() + ": feed_forward_proj '" + projection + "' is neither ACTIVATION nor gated-ACTIVATION",
                      "feed_forward_proj");
  }
  std::string name = dash == std::string::npos ? projection : projection.substr(dash + 1);
  if (projection == "gated-gelu") name = "gelu_new";
  config.activation = parse_activation(in, "dense_act_fn", name);
  config.gated = in.get<bool>("is_gated_act", dash != std::string::npos);
}

/// Version 4 scales where the head is tied; version 5 where T5 and umT5 say so (umT5's first files do not: always),
/// never in mT5.
bool scales_head(const ConfigReader& in, const std::string& type, bool tied) {
  if (type == "mt5") return tied && !is_of_transformers_5(in);
  return in.get<bool>("scale_decoder_outputs", tied || (type == "umt5" && is_of_transformers_5(in)));
}

}  // namespace

bool ties_by_weights(const ConfigReader& in) {
  return in.get<bool>("tie_word_embeddings", true) && (in.has("scale_decoder_outputs") || is_of_transformers_5(in));
}

T5Config parse_t5_config(const ConfigReader& in) {
  const auto type = in.get<std::string>("model_type", "t5");
  T5Config c;
  c.class_prefix = type == "umt5" ? "UMT5" : type == "mt5" ? "MT5" : "T5";
  c.bias_in_every_layer = type == "umt5";
  c.vocab_size = in.positive("vocab_size", type == "t5" ? 32128 : 250112);
  // Where there are two names, the first is the one that wins upstream.
  c.d_model = in.positive("hidden_size", in.positive("d_model", 512));
  c.d_kv = in.positive("head_dim", in.positive("d_kv", 64));
  c.d_ff = in.positive("d_ff", type == "t5" ? 2048 : 1024);
  c.num_heads = in.positive("num_attention_heads", in.positive("num_heads", type == "t5" ? 8 : 6));
  const auto num_layers = in.count("num_layers", type == "t5" ? 6 : 8);
  c.num_layers = in.count("num_hidden_layers", num_layers);
  c.num_decoder_layers = in.count("num_decoder_layers", num_layers);
  c.relative_buckets = in.positive("relative_attention_num_buckets", 32);
  c.relative_max_distance = in.positive("relative_attention_max_distance", 128);
  c.dropout = in.get<double>("dropout_rate", 0.1);
  c.norm_eps = in.get<double>("layer_norm_epsilon", 1e-6);
  c.initializer_factor = in.get<double>("initializer_factor", 1.0);
  c.tied = in.get<bool>("tie_word_embeddings", type != "mt5");
  if (in.has("is_encoder_decoder") && !in.get<bool>("is_encoder_decoder", true))
    throw ConfigError(in.file() + ": 'is_encoder_decoder' false is not supported: a T5 has both", "is_encoder_decoder");
  c.scales_head = scales_head(in, type, c.tied);
  parse_feed_forward(in, type == "t5" ? "relu" : "gated-gelu", c);
  c.pad_token_id = in.token("pad_token_id", 0);
  c.eos_token_id = in.token("eos_token_id", 1);
  c.decoder_start_token_id = in.token("decoder_start_token_id", c.pad_token_id);
  c.stored_dtype = stored_dtype(in);
  return c;
}

}  // namespace tessera::families
