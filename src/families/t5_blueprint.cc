// The modules of T5, mT5 and umT5.
#include "families/blueprint.h"
#include "families/t5_config.h"

namespace tessera::families {
namespace {

Blueprint rms(const T5Config& c, const std::string& name) {
  return norm(name, c.d_model, NormForm::kWeight);
}

Blueprint attention_layer(const T5Config& c, const std::string& name, bool has_bias) {
  const std::int64_t inner = c.num_heads * c.d_kv;
  Blueprint attention{.name = name};
  for (const char* part : {"q", "k", "v"}) attention.parts.push_back(linear(part, c.d_model, inner, Bias::kNone));
  attention.parts.push_back(linear("o", inner, c.d_model, Bias::kNone));
  if (has_bias) attention.parts.push_back(embedding("relative_attention_bias", c.relative_buckets, c.num_heads));
  return {.parts = {attention, rms(c, "layer_norm")}};
}

Blueprint feed_forward(const T5Config& c) {
  Blueprint dense{.name = "DenseReluDense"};
  dense.parts.push_back(linear(c.gated ? "wi_0" : "wi", c.d_model, c.d_ff, Bias::kNone));
  if (c.gated) dense.parts.push_back(linear("wi_1", c.d_model, c.d_ff, Bias::kNone));
  dense.parts.push_back(linear("wo", c.d_ff, c.d_model, Bias::kNone));
  return {.parts = {dense, rms(c, "layer_norm")}};
}

Blueprint block(const T5Config& c, bool decoder, bool has_bias) {
  std::vector<Blueprint> layers = {attention_layer(c, "SelfAttention", has_bias)};
  if (decoder) layers.push_back(attention_layer(c, "EncDecAttention", false));
  layers.push_back(feed_forward(c));
  const auto count = static_cast<std::int64_t>(layers.size());
  return {.parts = {list("layer", count, [&](std::int64_t i) { return layers[static_cast<std::size_t>(i)]; })}};
}

Blueprint stack(const T5Config& c, bool decoder) {
  const auto one = [&](std::int64_t i) { return block(c, decoder, i == 0 || c.bias_in_every_layer); };
  return {.name = decoder ? "decoder" : "encoder",
          .parts = {list("block", decoder ? c.num_decoder_layers : c.num_layers, one), rms(c, "final_layer_norm")}};
}

}  // namespace

Blueprint blueprint(const T5Config& c) {
  Blueprint out{.parts = {embedding("shared", c.vocab_size, c.d_model), stack(c, false), stack(c, true)}};
  if (!c.tied) out.parts.push_back(linear("lm_head", c.d_model, c.vocab_size, Bias::kNone));
  return out;
}

}  // namespace tessera::families
