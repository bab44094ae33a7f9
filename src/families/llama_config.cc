// Llama and the families that differ from it in a few settings: Mistral, Mixtral, Qwen2, Qwen3, SmolLM3, Phi3.
#include "families/decoder_families.h"
#include "families/decoder_parse.h"
#include "families/llama_like.h"

namespace tessera::families {

DecoderConfig llama_like(const nlohmann::json& json, const ConfigReader& in, const LlamaDefaults& defaults) {
  DecoderConfig c;
  const std::string& prefix = defaults.class_prefix;
  c.model_type = in.get<std::string>("model_type", "");
  c.classes = {prefix + "ForCausalLM", prefix + "Model", prefix + "DecoderLayer",
               prefix + "Attention",   prefix + "MLP",   prefix + "RMSNorm"};
  c.vocab_size = in.positive("vocab_size", defaults.vocab_size);
  c.hidden_size = in.positive("hidden_size", defaults.hidden_size);
  c.intermediate_size = in.positive("intermediate_size", defaults.intermediate_size);
  c.num_layers = in.positive("num_hidden_layers", defaults.num_layers);
  c.num_heads = defaults.num_heads;
  c.num_kv_heads = json.contains("num_key_value_heads") ? 0 : defaults.num_kv_heads;  // null: as many as heads
  c.head_dim = json.contains("head_dim") ? 0 : defaults.head_dim;
  parse_heads(in, c);
  c.max_positions = in.positive("max_position_embeddings", defaults.max_positions);
  c.norm_eps = in.get<double>("rms_norm_eps", defaults.norm_eps);
  c.activation = parse_activation(in, "hidden_act", defaults.activation);
  c.attention_dropout = in.get<double>("attention_dropout", 0.0);
  const double part = in.get<double>("partial_rotary_factor", 1.0);
  if (!defaults.partial_rotary) require(in, "partial_rotary_factor", 1.0, "other than 1 is not known to this family");
  c.rotary = parse_rotary(json, in, static_cast<std::int64_t>(static_cast<double>(c.head_dim) * part), c.max_positions);
  c.tied = in.get<bool>("tie_word_embeddings", defaults.tied);
  c.padding_idx = json.contains("pad_token_id") ? in.token("pad_token_id", -1) : defaults.pad_token_id;
  c.pad_token_id = defaults.pad_token_id;
  c.eos_token_id = defaults.eos_token_id;
  c.bos_token_id = defaults.bos_token_id;
  c.lora_targets = {"q_proj", "v_proj"};
  return c;
}

std::int64_t window_of(const nlohmann::json& json, const ConfigReader& in, std::int64_t fallback) {
  return json.contains("sliding_window") ? in.get<std::int64_t>("sliding_window", 0) : fallback;
}

DecoderConfig parse_llama(const nlohmann::json& json, const std::string& file) {
  const ConfigReader in(json, file);
  auto c = llama_like(json, in, {.class_prefix = "Llama"});
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.mlp_bias = in.get<bool>("mlp_bias", false);
  finish(in, c);
  return c;
}

DecoderConfig parse_mistral(const nlohmann::json& json, const std::string& file) {
  const ConfigReader in(json, file);
  auto c = llama_like(
      json, in, {.class_prefix = "Mistral", .intermediate_size = 14336, .num_kv_heads = 8, .max_positions = 131072});
  c.attention_window.assign(static_cast<std::size_t>(c.num_layers), window_of(json, in, 4096));
  finish(in, c);
  return c;
}

DecoderConfig parse_mixtral(const nlohmann::json& json, const std::string& file) {
  const ConfigReader in(json, file);
  auto c = llama_like(json, in,
                      {.class_prefix = "Mixtral",
                       .intermediate_size = 14336,
                       .num_kv_heads = 8,
                       .max_positions = 131072,
                       .norm_eps = 1e-5});
  c.rotary.theta = in.get<double>("rope_theta", 1e6);
  c.attention_window.assign(static_cast<std::size_t>(c.num_layers), window_of(json, in, 0));
  c.mlp = MlpKind::kExperts;
  c.names.mlp = "block_sparse_moe";
  c.names.gate = "w1";
  c.names.up = "w3";
  c.names.down = "w2";
  c.classes.mlp = "MixtralBlockSparseTop2MLP";
  c.experts.count = in.positive("num_local_experts", 8);
  c.experts.per_token = in.positive("num_experts_per_tok", 2);
  c.experts.auxiliary_loss = in.get<bool>("output_router_logits", false);
  c.experts.auxiliary_coefficient = in.get<double>("router_aux_loss_coef", 0.001);
  require(in, "router_jitter_noise", 0.0, "is not supported: set it to 0");
  if (c.experts.per_token > c.experts.count) {
    throw ConfigError(file + ": num_experts_per_tok (" + std::to_string(c.experts.per_token) +
                          ") is larger than num_local_experts (" + std::to_string(c.experts.count) + ")",
                      "num_experts_per_tok");
  }
  finish(in, c);
  return c;
}

namespace {

// Qwen2's rule: layers from max_window_layers on slide, where sliding windows are switched on.
void parse_qwen_windows(const nlohmann::json& json, const ConfigReader& in, DecoderConfig& c) {
  const std::int64_t window = in.get<bool>("use_sliding_window", false) ? window_of(json, in, 4096) : 0;
  const auto first = in.get<std::int64_t>("max_window_layers", 28);
  parse_layer_types(in, window, c, [&](std::int64_t i) { return i >= first; });
}

}  // namespace

DecoderConfig parse_qwen2(const nlohmann::json& json, const std::string& file) {
  const ConfigReader in(json, file);
  auto c = llama_like(json, in,
                      {.class_prefix = "Qwen2",
                       .vocab_size = 151936,
                       .intermediate_size = 22016,
                       .num_kv_heads = 32,
                       .max_positions = 32768});
  c.qkv_bias = true;
  parse_qwen_windows(json, in, c);
  finish(in, c);
  return c;
}

DecoderConfig parse_qwen3(const nlohmann::json& json, const std::string& file) {
  const ConfigReader in(json, file);
  auto c = llama_like(json, in,
                      {.class_prefix = "Qwen3",
                       .vocab_size = 151936,
                       .intermediate_size = 22016,
                       .num_kv_heads = 32,
                       .head_dim = 128,
                       .max_positions = 32768});
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.qk_norm = QkNorm::kHead;
  parse_qwen_windows(json, in, c);
  finish(in, c);
  return c;
}

DecoderConfig parse_smollm3(const nlohmann::json& json, const std::string& file) {
  const ConfigReader in(json, file);
  auto c = llama_like(json, in,
                      {.class_prefix = "SmolLM3",
                       .vocab_size = 128256,
                       .hidden_size = 2048,
                       .num_layers = 36,
                       .num_heads = 16,
                       .num_kv_heads = 4,
                       .max_positions = 32768,
                       .pad_token_id = 128004,
                       .bos_token_id = 128000,
                       .eos_token_id = 128001,
                       .tied = true});
  c.rotary.theta = in.get<double>("rope_theta", 2e6);
  c.qkv_bias = c.o_bias = in.get<bool>("attention_bias", false);
  c.mlp_bias = in.get<bool>("mlp_bias", false);
  const auto every = in.positive("no_rope_layer_interval", 4);
  const auto given = in.get<std::vector<int>>("no_rope_layers", {});  // 1: the layer has rotary positions
  if (!given.empty() && static_cast<std::int64_t>(given.size()) != c.num_layers)
    throw ConfigError(file + ": no_rope_layers must name every layer", "no_rope_layers");
  for (std::int64_t i = 0; i < c.num_layers; ++i)
    c.rotary_layers.push_back(given.empty() ? (i + 1) % every != 0 : given[static_cast<std::size_t>(i)] != 0);
  const std::int64_t window = in.get<bool>("use_sliding_window", false) ? window_of(json, in, 0) : 0;
  parse_layer_types(in, window, c, [&](std::int64_t i) { return !c.rotary_layers[static_cast<std::size_t>(i)]; });
  finish(in, c);
  return c;
}

DecoderConfig parse_phi3(const nlohmann::json& given, const std::string& file) {
  nlohmann::json json = given;
  if (json.contains("rope_scaling") && json["rope_scaling"].is_object()) {
    auto& scaling = json["rope_scaling"];  // early files call longrope "su" or "yarn"
    for (const char* key : {"type", "rope_type"}) {
      if (scaling.contains(key) && (scaling[key] == "su" || scaling[key] == "yarn")) scaling[key] = "longrope";
    }
    if (!json.contains("original_max_position_embeddings")) json["original_max_position_embeddings"] = 4096;
  }
  const ConfigReader in(json, file);
  auto c = llama_like(json, in,
                      {.class_prefix = "Phi3",
                       .vocab_size = 32064,
                       .hidden_size = 3072,
                       .intermediate_size = 8192,
                       .max_positions = 4096,
                       .norm_eps = 1e-5,
                       .pad_token_id = 32000,
                       .eos_token_id = 32000,
                       .partial_rotary = true});
  c.names.qkv = "qkv_proj";
  c.names.gate = "gate_up_proj";
  c.qkv = QkvLayout::kConcatenated;
  c.mlp = MlpKind::kGatedFused;
  c.residual_dropout = in.get<double>("resid_pdrop", 0.0);
  c.attention_window.assign(static_cast<std::size_t>(c.num_layers), window_of(json, in, 0));
  c.lora_targets = {"qkv_proj"};
  finish(in, c);
  return c;
}

}  // namespace tessera::families
