// GPT-2, GPT-BigCode (StarCoder), GPT-J, GPT-Neo and GPT-NeoX.
#include <cmath>

#include "base/json_text.h"
#include "families/decoder_families.h"
#include "families/decoder_parse.h"

namespace tessera::families {
namespace {

struct GptDefaults {
  std::int64_t vocab_size, positions, hidden_size, layers, heads;
  double dropout;
};

void name_as_gpt2(DecoderConfig& c) {
  c.names.base = "transformer";
  c.names.embedding = "wte";
  c.names.layers = "h";
  c.names.final_norm = "ln_f";
  c.names.attention_norm = "ln_1";
  c.bos_token_id = c.eos_token_id = 50256;
}

/// A table of positions, and an MLP behind a norm of its own, which GPT-J has not.
void learn_positions(DecoderConfig& c) {
  c.position = PositionKind::kLearned;
  c.position_rows = c.max_positions;
  c.names.positions = "wpe";
  c.names.mlp_norm = "ln_2";
  c.names.up = "c_fc";
  c.names.down = "c_proj";
}

// The keys of GPT-2, GPT-BigCode and GPT-J, under either of the names that transformers' attribute_map knows.
DecoderConfig gpt_like(const ConfigReader& in, const GptDefaults& d, const char* activation = "gelu_new") {
  DecoderConfig c;
  c.model_type = in.get<std::string>("model_type", "");
  c.vocab_size = in.positive("vocab_size", d.vocab_size);
  c.max_positions = in.positive("max_position_embeddings", in.positive("n_positions", d.positions));
  c.hidden_size = in.positive("hidden_size", in.positive("n_embd", d.hidden_size));
  c.num_layers = in.count("num_hidden_layers", in.count("n_layer", d.layers));
  c.num_heads = in.positive("n_head", d.heads);
  parse_head_count(in, c);
  c.intermediate_size = in.positive("n_inner", 4 * c.hidden_size);
  c.norm = NormKind::kLayer;
  c.norm_eps = in.get<double>("layer_norm_epsilon", 1e-5);
  c.mlp = MlpKind::kPlain;
  c.mlp_bias = true;
  c.activation = parse_activation(in, "activation_function", activation);
  c.embedding_dropout = in.get<double>("embd_pdrop", d.dropout);
  c.residual_dropout = in.get<double>("resid_pdrop", d.dropout);
  c.attention_dropout = in.get<double>("attn_pdrop", d.dropout);
  name_as_gpt2(c);
  c.names.attention = "attn";
  c.pad_token_id = -1;
  return c;
}

/// What GPT-2 and GPT-BigCode share.
void attend_as_gpt2(const ConfigReader& in, DecoderConfig& c) {
  learn_positions(c);
  c.names.qkv = "c_attn";
  c.names.o = "c_proj";
  c.qkv_bias = c.o_bias = true;
  c.tied = in.get<bool>("tie_word_embeddings", true);
  c.lora_targets = {"c_attn"};
}

}  // namespace

DecoderConfig parse_gpt2(const ConfigReader& in) {
  auto c = gpt_like(in, {50257, 1024, 768, 12, 12, 0.1});
  require(in, "add_cross_attention", false, "is not supported: GPT-2 here is a decoder alone");
  c.classes = {"GPT2LMHeadModel", "GPT2Model", "GPT2Block", "GPT2Attention", "GPT2MLP", "LayerNorm"};
  attend_as_gpt2(in, c);
  c.qkv = QkvLayout::kConcatenated;
  c.transposed_weights = true;
  c.blind_query_sees_past = true;
  const double scale = in.get<bool>("scale_attn_weights", true) ? std::pow(static_cast<double>(c.head_dim), -0.5) : 1.0;
  const bool by_layer = in.get<bool>("scale_attn_by_inverse_layer_idx", false);
  for (std::int64_t i = 0; i < c.num_layers; ++i)
    c.attention_scale.push_back(by_layer ? scale / static_cast<double>(i + 1) : scale);
  finish(in, c);
  c.output_initializer_range = c.initializer_range / std::sqrt(2.0 * static_cast<double>(c.num_layers));
  return c;
}

DecoderConfig parse_gpt_bigcode(const ConfigReader& in) {
  auto c = gpt_like(in, {50257, 1024, 768, 12, 12, 0.1}, "gelu_pytorch_tanh");
  require(in, "add_cross_attention", false, "is not supported: GPT-BigCode here is a decoder alone");
  c.classes = {"GPTBigCodeForCausalLM", "GPTBigCodeModel", "GPTBigCodeBlock",
               "GPTBigCodeAttention",   "GPTBigCodeMLP",   "LayerNorm"};
  attend_as_gpt2(in, c);
  const bool one_key_head = in.get<bool>("multi_query", true);
  if (one_key_head) c.num_kv_heads = 1;
  c.qkv = one_key_head ? QkvLayout::kConcatenated : QkvLayout::kGrouped;
  if (!in.get<bool>("scale_attn_weights", true)) c.attention_scale.assign(static_cast<std::size_t>(c.num_layers), 1.0);
  finish(in, c);
  c.output_initializer_range = c.initializer_range / std::sqrt(2.0 * static_cast<double>(c.num_layers));
  return c;
}

DecoderConfig parse_gptj(const ConfigReader& in) {
  auto c = gpt_like(in, {50400, 2048, 4096, 28, 16, 0.0});
  c.classes = {"GPTJForCausalLM", "GPTJModel", "GPTJBlock", "GPTJAttention", "GPTJMLP", "LayerNorm"};
  if (in.contains("rotary_dim") && !in.has("rotary_dim"))
    throw ConfigError(in.file() + ": rotary_dim null is not supported; name how many elements of a head turn",
                      "rotary_dim");
  c.rotary.dims = in.positive("rotary_dim", 64);
  if (c.rotary.dims > c.head_dim || c.rotary.dims % 2 != 0) {
    throw ConfigError(in.file() + ": rotary_dim " + std::to_string(c.rotary.dims) +
                          " must be even and at most the size of a head, " + std::to_string(c.head_dim),
                      "rotary_dim");
  }
  c.rotary.pairs = RotaryPairs::kNeighbours;
  c.rotary.max_positions = c.max_positions;
  c.residual = ResidualKind::kParallel;
  c.names.mlp_norm = "";
  c.names.o = "out_proj";
  c.names.up = "fc_in";
  c.names.down = "fc_out";
  c.head_bias = true;
  c.tied = in.get<bool>("tie_word_embeddings", false);
  c.lora_targets = {"q_proj", "v_proj"};
  finish(in, c);
  return c;
}

namespace {

/// "global" or "local" for each layer: attention_layers, else attention_types, pairs of names and how often they
/// repeat.
std::vector<std::string> gpt_neo_layers(const ConfigReader& in, std::int64_t layers) {
  const char* key = "attention_types";
  const auto types = in.has(key) ? in.at(key) : nlohmann::json::parse(R"([[["global", "local"], 12]])");
  const auto wanted = static_cast<std::size_t>(layers);
  std::vector<std::string> all;
  for (const auto& item : types) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_array() || !item[1].is_number_unsigned())
      throw ConfigError(
          in.file() + ": attention_types is a list such as [[[\"global\", \"local\"], 12]], found " + json_text(types),
          key);
    const auto times = item[1].get<std::uint64_t>();
    for (std::uint64_t i = 0; i < times && !item[0].empty() && all.size() <= wanted; ++i)
      for (const auto& name : item[0]) all.push_back(name.is_string() ? name.get<std::string>() : json_text(name));
  }
  if (all.size() != wanted)
    throw ConfigError(in.file() + ": attention_types (" + json_text(types) + ") is not for the " +
                          std::to_string(layers) + " layers of num_layers",
                      key);
  all = in.get<std::vector<std::string>>("attention_layers", all);
  if (all.size() < wanted)
    throw ConfigError(in.file() + ": attention_layers names " + std::to_string(all.size()) + " layers, num_layers is " +
                          std::to_string(layers),
                      "attention_layers");
  for (const auto& name : all)
    if (name != "global" && name != "local")
      throw ConfigError(in.file() + ": an attention layer is global or local, found '" + name + "'",
                        "attention_layers");
  return all;
}

}  // namespace

DecoderConfig parse_gpt_neo(const ConfigReader& in) {
  DecoderConfig c;
  c.model_type = in.get<std::string>("model_type", "");
  c.classes = {"GPTNeoForCausalLM", "GPTNeoModel", "GPTNeoBlock", "GPTNeoSelfAttention", "GPTNeoMLP", "LayerNorm"};
  c.vocab_size = in.positive("vocab_size", 50257);
  c.hidden_size = in.positive("hidden_size", 2048);
  c.num_layers = in.count("num_hidden_layers", in.count("num_layers", 24));
  c.num_heads = in.positive("num_heads", 16);
  parse_head_count(in, c);
  c.intermediate_size = in.positive("intermediate_size", 4 * c.hidden_size);
  c.max_positions = in.positive("max_position_embeddings", 2048);
  c.norm = NormKind::kLayer;
  c.norm_eps = in.get<double>("layer_norm_epsilon", 1e-5);
  c.o_bias = true;
  c.attention_scale.assign(static_cast<std::size_t>(c.num_layers), 1.0);
  const auto window = in.positive("window_size", 256);
  const auto layers = gpt_neo_layers(in, c.num_layers);
  for (std::int64_t i = 0; i < c.num_layers; ++i)
    c.attention_window.push_back(layers[static_cast<std::size_t>(i)] == "local" ? window : 0);
  c.blind_query_sees_past = true;
  c.mlp = MlpKind::kPlain;
  c.mlp_bias = true;
  c.activation = parse_activation(in, "activation_function", "gelu_new");
  c.embedding_dropout = in.get<double>("embed_dropout", 0.0);
  c.residual_dropout = in.get<double>("resid_dropout", 0.0);
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  name_as_gpt2(c);
  learn_positions(c);
  c.names.attention = "attn.attention";
  c.names.o = "out_proj";
  c.tied = in.get<bool>("tie_word_embeddings", true);
  c.lora_targets = {"q_proj", "v_proj"};
  finish(in, c);
  return c;
}

DecoderConfig parse_gpt_neox(const ConfigReader& in) {
  DecoderConfig c;
  c.model_type = in.get<std::string>("model_type", "");
  c.classes = {"GPTNeoXForCausalLM", "GPTNeoXModel", "GPTNeoXLayer", "GPTNeoXAttention", "GPTNeoXMLP", "LayerNorm"};
  c.vocab_size = in.positive("vocab_size", 50432);
  c.hidden_size = in.positive("hidden_size", 6144);
  c.num_layers = in.count("num_hidden_layers", 44);
  c.intermediate_size = in.positive("intermediate_size", 24576);
  c.max_positions = in.positive("max_position_embeddings", 2048);
  c.num_heads = 64;
  parse_head_count(in, c);
  require_equal_heads(in, c);
  c.norm = NormKind::kLayer;
  c.norm_eps = in.get<double>("layer_norm_eps", 1e-5);
  c.rotary = parse_rotary(
      in, c.head_dim, c.max_positions,
      {.theta_key = "rotary_emb_base", .part_key = "rotary_pct", .part = 0.25, .parts = RotaryKeys::Part::kAny});
  c.residual = in.get<bool>("use_parallel_residual", true) ? ResidualKind::kParallel : ResidualKind::kSequential;
  c.qkv = QkvLayout::kGrouped;
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", true);
  c.mlp = MlpKind::kPlain;
  c.mlp_bias = true;
  c.activation = parse_activation(in, "hidden_act", "gelu");
  c.embedding_dropout = c.residual_dropout = in.get<double>("hidden_dropout", 0.0);
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  c.names.base = "gpt_neox";
  c.names.embedding = "embed_in";
  c.names.final_norm = "final_layer_norm";
  c.names.head = "embed_out";
  c.names.attention = "attention";
  c.names.qkv = "query_key_value";
  c.names.o = "dense";
  c.names.up = "dense_h_to_4h";
  c.names.down = "dense_4h_to_h";
  c.tied = in.get<bool>("tie_word_embeddings", false);
  c.bos_token_id = 0;
  c.pad_token_id = -1;
  c.lora_targets = {"query_key_value"};
  finish(in, c);
  return c;
}

}  // namespace tessera::families
