// Llama and the families that differ from it in a few settings: Granite, Mistral, Mixtral, Qwen2 and Qwen3 (both with
// experts, too), SmolLM3, StarCoder2, Phi3.
#include <algorithm>

#include "families/decoder_families.h"
#include "families/decoder_parse.h"
#include "families/llama_like.h"

namespace tessera::families {

DecoderConfig llama_like(const ConfigReader& in, const LlamaDefaults& defaults) {
  DecoderConfig c;
  const std::string& prefix = defaults.class_prefix;
  c.model_type = in.get<std::string>("model_type", "");
  c.classes = {prefix + "ForCausalLM", prefix + "Model", prefix + "DecoderLayer",
               prefix + "Attention",   prefix + "MLP",   prefix + "RMSNorm"};
  c.vocab_size = in.positive("vocab_size", defaults.vocab_size);
  c.hidden_size = in.positive("hidden_size", defaults.hidden_size);
  c.intermediate_size = in.positive("intermediate_size", defaults.intermediate_size);
  c.num_layers = in.count("num_hidden_layers", defaults.num_layers);
  c.num_heads = defaults.num_heads;
  c.num_kv_heads = in.contains("num_key_value_heads") ? 0 : defaults.num_kv_heads;  // null: as many as heads
  c.head_dim = in.contains("head_dim") ? 0 : defaults.head_dim;
  parse_heads(in, c);
  c.max_positions = in.positive("max_position_embeddings", defaults.max_positions);
  c.norm_eps = in.get<double>("rms_norm_eps", defaults.norm_eps);
  c.activation = parse_activation(in, "hidden_act", defaults.activation);
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  c.rotary = parse_rotary(in, c.head_dim, c.max_positions, defaults.rotary);
  c.tied = in.get<bool>("tie_word_embeddings", defaults.tied);
  c.padding_idx = padding_row(in, defaults.pad_token_id, c.vocab_size);
  c.pad_token_id = defaults.pad_token_id;
  c.eos_token_id = defaults.eos_token_id;
  c.bos_token_id = defaults.bos_token_id;
  c.lora_targets = {"q_proj", "v_proj"};
  return c;
}

std::int64_t window_of(const ConfigReader& in, std::int64_t fallback) {
  return in.contains("sliding_window") ? in.get<std::int64_t>("sliding_window", 0) : fallback;
}

void parse_experts(const ConfigReader& in, const ExpertDefaults& defaults, DecoderConfig& c) {
  const std::string count_key = defaults.count_key;
  c.mlp = MlpKind::kExperts;
  c.experts.intermediate_size = c.intermediate_size;
  c.experts.count = in.count(count_key, defaults.count);
  constexpr std::int64_t kMostExperts = 1 << 16;  // of the whole model: published ones have some thousands
  if (c.experts.count * c.num_layers > kMostExperts)
    throw ConfigError(in.file() + ": " + count_key + " (" + std::to_string(c.experts.count) +
                          ") in each of num_hidden_layers (" + std::to_string(c.num_layers) + ") are more than " +
                          std::to_string(kMostExperts),
                      count_key);
  c.experts.per_token = in.positive("num_experts_per_tok", defaults.per_token);
  c.experts.auxiliary_loss = in.get<bool>("output_router_logits", false);
  c.experts.auxiliary_coefficient = in.get<double>("router_aux_loss_coef", defaults.auxiliary_coefficient);
  if (c.experts.per_token > c.experts.count)
    throw ConfigError(in.file() + ": num_experts_per_tok (" + std::to_string(c.experts.per_token) +
                          ") is larger than " + count_key + " (" + std::to_string(c.experts.count) + ")",
                      "num_experts_per_tok");
}

DecoderConfig parse_llama(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Llama"});
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.mlp_bias = in.get<bool>("mlp_bias", false);
  finish(in, c);
  return c;
}

DecoderConfig parse_mistral(const ConfigReader& in) {
  const bool is_ministral = in.get<std::string>("model_type", "") == "ministral";
  auto c = llama_like(in, {.class_prefix = is_ministral ? "Ministral" : "Mistral",
                           .intermediate_size = 14336,
                           .num_kv_heads = 8,
                           .max_positions = 131072});
  const auto window = window_of(in, 4096);  // layer_types make a Mistral what transformers calls a Ministral
  parse_layer_types(in, window, c, [](std::int64_t) { return true; });
  finish(in, c);
  return c;
}

DecoderConfig parse_granite(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Granite"});
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.mlp_bias = in.get<bool>("mlp_bias", false);
  c.embedding_scale = in.get<double>("embedding_multiplier", 1.0);
  c.branch_scale = in.get<double>("residual_multiplier", 1.0);
  c.attention_scale.assign(static_cast<std::size_t>(c.num_layers), in.get<double>("attention_multiplier", 1.0));
  const double divisor = in.get<double>("logits_scaling", 1.0);
  if (divisor == 0)
    throw ConfigError(in.file() + ": logits_scaling must not be 0: logits are divided by it", "logits_scaling");
  c.logit_scale = 1.0 / divisor;
  finish(in, c);
  return c;
}

DecoderConfig parse_starcoder2(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Starcoder2",
                           .vocab_size = 49152,
                           .hidden_size = 3072,
                           .intermediate_size = 12288,
                           .num_layers = 30,
                           .num_heads = 24,
                           .num_kv_heads = 2,
                           .max_positions = 4096,
                           .bos_token_id = 50256,
                           .eos_token_id = 50256,
                           .activation = "gelu_pytorch_tanh",
                           .tied = true});
  c.classes.norm = "LayerNorm";
  c.norm = NormKind::kLayer;
  c.norm_eps = in.get<double>("norm_epsilon", 1e-5);
  c.mlp = MlpKind::kPlain;
  c.names.up = "c_fc";
  c.names.down = "c_proj";
  c.qkv_bias = c.o_bias = c.mlp_bias = in.get<bool>("use_bias", true);
  c.residual_dropout = in.get<double>("residual_dropout", 0.0);
  c.embedding_dropout = in.get<double>("embedding_dropout", 0.0);
  c.attention_window.assign(static_cast<std::size_t>(c.num_layers), window_of(in, 0));
  finish(in, c);
  return c;
}

DecoderConfig parse_mixtral(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Mixtral",
                           .intermediate_size = 14336,
                           .num_kv_heads = 8,
                           .max_positions = 131072,
                           .norm_eps = 1e-5,
                           .rotary = {.theta = 1e6}});
  c.attention_window.assign(static_cast<std::size_t>(c.num_layers), window_of(in, 0));
  c.names.mlp = "block_sparse_moe";
  c.names.gate = "w1";
  c.names.up = "w3";
  c.names.down = "w2";
  c.classes.mlp = "MixtralBlockSparseTop2MLP";
  c.classes.experts = "MixtralSparseMoeBlock";
  parse_experts(in, {.count_key = "num_local_experts", .count = 8, .per_token = 2}, c);
  require(in, "router_jitter_noise", 0.0, "is not supported: set it to 0");
  finish(in, c);
  return c;
}

namespace {

std::int64_t qwen_window(const ConfigReader& in) {
  return in.get<bool>("use_sliding_window", false) ? window_of(in, 4096) : 0;
}

// Qwen2's rule: layers from max_window_layers on slide, where sliding windows are switched on.
void parse_qwen_windows(const ConfigReader& in, DecoderConfig& c) {
  const auto first = in.get<std::int64_t>("max_window_layers", 28);
  parse_layer_types(in, qwen_window(in), c, [&](std::int64_t i) { return i >= first; });
}

}  // namespace

DecoderConfig parse_qwen2(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Qwen2",
                           .vocab_size = 151936,
                           .intermediate_size = 22016,
                           .num_kv_heads = 32,
                           .max_positions = 32768});
  c.qkv_bias = true;
  parse_qwen_windows(in, c);
  finish(in, c);
  return c;
}

DecoderConfig parse_qwen3(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Qwen3",
                           .vocab_size = 151936,
                           .intermediate_size = 22016,
                           .num_kv_heads = 32,
                           .head_dim = 128,
                           .max_positions = 32768});
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.qk_norm = QkNorm::kHead;
  parse_qwen_windows(in, c);
  finish(in, c);
  return c;
}

namespace {

// Qwen2's and Qwen3's with experts: in which layers, and of what size.
void parse_qwen_experts(const ConfigReader& in, const ExpertDefaults& defaults, std::int64_t size, DecoderConfig& c) {
  parse_experts(in, defaults, c);
  c.experts.intermediate_size = in.positive("moe_intermediate_size", size);
  c.experts.normalised = in.get<bool>("norm_topk_prob", false);
  const auto step = in.positive("decoder_sparse_step", 1);
  const auto plain = in.get<std::vector<std::int64_t>>("mlp_only_layers", {});
  for (std::int64_t i = 0; i < c.num_layers; ++i)
    c.experts.layers.push_back(c.experts.count > 0 && (i + 1) % step == 0 &&
                               std::find(plain.begin(), plain.end(), i) == plain.end());
  (void)in.contains("max_window_layers");  // all layers slide or none, or layer_types says which
}

}  // namespace

DecoderConfig parse_qwen2_moe(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Qwen2Moe",
                           .vocab_size = 151936,
                           .hidden_size = 2048,
                           .intermediate_size = 5632,
                           .num_layers = 24,
                           .num_heads = 16,
                           .num_kv_heads = 16,
                           .max_positions = 32768});
  c.qkv_bias = in.get<bool>("qkv_bias", true);
  c.classes.experts = "Qwen2MoeSparseMoeBlock";
  parse_qwen_experts(in, {.count = 60, .per_token = 4}, 1408, c);
  c.experts.shared_size = in.positive("shared_expert_intermediate_size", 5632);
  // Which layers slide is what transformers 5 writes; in version 4 all do or none.
  parse_layer_types(in, qwen_window(in), c, [](std::int64_t) { return true; });
  finish(in, c);
  return c;
}

DecoderConfig parse_qwen3_moe(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Qwen3Moe",
                           .vocab_size = 151936,
                           .hidden_size = 2048,
                           .intermediate_size = 6144,
                           .num_layers = 24,
                           .num_kv_heads = 4,
                           .max_positions = 32768});
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.qk_norm = QkNorm::kHead;
  c.classes.experts = "Qwen3MoeSparseMoeBlock";
  // transformers 5 writes num_local_experts
  parse_qwen_experts(in, {.count = in.count("num_local_experts", 128), .per_token = 8}, 768, c);
  c.attention_window.assign(static_cast<std::size_t>(c.num_layers), qwen_window(in));
  finish(in, c);
  return c;
}

DecoderConfig parse_smollm3(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "SmolLM3",
                           .vocab_size = 128256,
                           .hidden_size = 2048,
                           .num_layers = 36,
                           .num_heads = 16,
                           .num_kv_heads = 4,
                           .max_positions = 32768,
                           .pad_token_id = 128004,
                           .bos_token_id = 128000,
                           .eos_token_id = 128001,
                           .tied = true,
                           .rotary = {.theta = 2e6}});
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.mlp_bias = in.get<bool>("mlp_bias", false);
  const auto every = in.positive("no_rope_layer_interval", 4);
  const auto given = in.get<std::vector<int>>("no_rope_layers", {});  // 1: the layer has rotary positions
  if (!given.empty() && static_cast<std::int64_t>(given.size()) != c.num_layers)
    throw ConfigError(in.file() + ": no_rope_layers must name every layer", "no_rope_layers");
  for (std::int64_t i = 0; i < c.num_layers; ++i)
    c.rotary_layers.push_back(given.empty() ? (i + 1) % every != 0 : given[static_cast<std::size_t>(i)] != 0);
  // The switch decides where layer_types doesn't.
  const bool slides = in.get<bool>("use_sliding_window", false);
  parse_layer_types(in, window_of(in, 0), c,
                    [&](std::int64_t i) { return slides && !c.rotary_layers[static_cast<std::size_t>(i)]; });
  finish(in, c);
  return c;
}

DecoderConfig parse_phi3(const ConfigReader& in) {
  auto c = llama_like(in, {.class_prefix = "Phi3",
                           .vocab_size = 32064,
                           .hidden_size = 3072,
                           .intermediate_size = 8192,
                           .max_positions = 4096,
                           .norm_eps = 1e-5,
                           .pad_token_id = 32000,
                           .eos_token_id = 32000,
                           .rotary = {.parts = RotaryKeys::Part::kAny, .names = RotaryKeys::Names::kPhi3}});
  if (c.rotary.scaling == RopeScaling::kLongRope) c.reread_beyond = c.rotary.original_positions;
  c.names.qkv = "qkv_proj";
  c.names.gate = "gate_up_proj";
  c.qkv = QkvLayout::kConcatenated;
  c.mlp = MlpKind::kGatedFused;
  c.residual_dropout = in.get<double>("resid_pdrop", 0.0);
  c.attention_window.assign(static_cast<std::size_t>(c.num_layers), window_of(in, 0));
  c.lora_targets = {"qkv_proj"};
  finish(in, c);
  return c;
}

}  // namespace tessera::families
