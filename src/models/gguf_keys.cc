#include "models/gguf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "families/config_reader.h"
#include "models/gguf_names.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using families::DecoderConfig;
using families::RopeScaling;

enum class Biases { kNone, kAny, kAll };  // of which there must be none, may be some, must be all

/// What llama.cpp computes for an architecture, whatever a file says.
struct Reader {
  const char* family;
  const char* activation_name;  // as a message names it
  std::vector<Activation> activations;
  Biases qkv = Biases::kAny, output = Biases::kNone, mlp = Biases::kNone;
  bool always_tied = false;
};

const Reader& reader_of(const std::string& family) {
  const std::vector<Activation> silu = {Activation::kSilu}, tanh = {Activation::kGeluTanh},
                                gelu = {Activation::kGelu, Activation::kGeluTanh};
  constexpr auto kNone = Biases::kNone, kAny = Biases::kAny, kAll = Biases::kAll;
  static const std::vector<Reader> readers = {{"llama", "silu", silu, kAny, kAny, kAny},
                                              {"mistral", "silu", silu, kAny, kAny, kAny},
                                              {"mixtral", "silu", silu},
                                              {"granite", "silu", silu, kAny, kAny, kAny},
                                              {"smollm3", "silu", silu},
                                              {"qwen2", "silu", silu},
                                              {"qwen3", "silu", silu},
                                              {"qwen3moe", "silu", silu},
                                              {"olmo2", "silu", silu},
                                              {"phi3", "silu", silu},
                                              {"phi2", "gelu_new", gelu, kAll, kAll, kAll},
                                              {"stablelm", "silu", silu},
                                              {"olmo", "silu", silu, kNone},
                                              {"olmoe", "silu", silu, kNone},
                                              {"chatglm", "silu", silu},
                                              {"glm4", "silu", silu},
                                              {"starcoder", "gelu_pytorch_tanh", tanh, kAll, kAll, kAll},
                                              {"gemma", "gelu_pytorch_tanh", tanh, kAny, kNone, kNone, true},
                                              {"gemma2", "gelu_pytorch_tanh", tanh, kAny, kNone, kNone, true},
                                              {"gemma3", "gelu_pytorch_tanh", tanh, kAny, kNone, kNone},
                                              {"starcoder2", "gelu_pytorch_tanh", tanh, kAll, kAll, kAll},
                                              {"gpt2", "gelu_new", tanh, kAll, kAll, kAll},
                                              {"gptneox", "gelu", gelu, kAll, kAll, kAll},
                                              {"bloom", "gelu", gelu, kAll, kAll, kAll},
                                              {"falcon", "gelu", gelu, kNone, kNone, kNone},
                                              {"falcon with two norms", "gelu", gelu, kNone, kNone, kNone}};
  for (const Reader& r : readers)
    if (family == r.family) return r;
  throw std::logic_error("no reader of " + family);
}

std::uint32_t u32(std::int64_t value) {
  return static_cast<std::uint32_t>(value);
}

class Keys {
 public:
  Keys(const std::string& family, const DecoderConfig& config, const nlohmann::json& json)
      : family_(family), c_(config), json_(json), reader_(reader_of(family)) {
    out_.architecture = gguf_architecture(family);
  }

  GgufExport build() {
    check();
    if (is_one_of({"gpt2", "starcoder"}))
      add_gpt2();
    else if (is_one_of({"phi2", "stablelm"}))
      add_phi2();
    else if (family_ == "chatglm")
      add_chatglm();
    else if (family_ == "gptneox")
      add_neox();
    else if (family_ == "bloom")
      add_bloom();
    else if (out_.architecture == "falcon")
      add_falcon();
    else if (family_ == "gemma" || family_ == "gemma2")
      add_gemma();
    else if (family_ == "phi3")
      add_phi3();
    else
      add_usual();
    return std::move(out_);
  }

 private:
  bool is(const char* family) const { return family_ == family; }
  bool is_one_of(std::initializer_list<const char*> families) const {
    return std::any_of(families.begin(), families.end(), [&](const char* f) { return family_ == f; });
  }

  void add(const std::string& key, io::GgufItem value) {
    out_.metadata.emplace_back(out_.architecture + "." + key, std::move(value));
  }
  void add_size(const char* key, std::int64_t value) { add(key, u32(value)); }
  void add_number(const char* key, double value) { add(key, static_cast<float>(value)); }

  // ---- what readers take for granted

  void check() {
    if (std::find(reader_.activations.begin(), reader_.activations.end(), c_.activation) == reader_.activations.end())
      refuse_in_gguf(
          fmt::format("the activation of this {}: readers compute {}", c_.model_type, reader_.activation_name));
    check_biases("queries, keys and values", c_.qkv_bias, reader_.qkv);
    check_biases("attention's output", c_.o_bias, reader_.output);
    check_biases("the MLP", c_.mlp_bias, reader_.mlp);
    if (reader_.always_tied && !c_.tied)
      refuse_in_gguf("an lm_head of its own: readers of a " + c_.model_type + " take its table of tokens");
    check_scales();
    check_windows();
    check_positions();
    if (c_.residual_after_norm) refuse_in_gguf("apply_residual_connection_post_layernorm true");
    if (out_.architecture == "falcon" && c_.residual != families::ResidualKind::kParallel)
      refuse_in_gguf("parallel_attn false");
    if (is("qwen3moe") && !c_.experts.normalised) refuse_in_gguf("norm_topk_prob false");
    for (std::int64_t i = 0; i < c_.num_layers; ++i)
      if (c_.experts.count > 0 && !c_.has_experts(i)) refuse_in_gguf("layers without experts beside those with them");
    if (is("olmoe") && c_.experts.normalised) refuse_in_gguf("norm_topk_prob true");
    if (is("starcoder") && c_.num_kv_heads != 1) refuse_in_gguf("multi_query false");
    if (!is("olmo") && c_.clip_qkv > 0) refuse_in_gguf("clip_qkv");
    if (is_one_of({"phi2", "stablelm"}) && c_.qk_norm != families::QkNorm::kNone) refuse_in_gguf("qk_layernorm true");
    check_heads();
    if (!is("gemma2") && c_.attention_softcap != 0) refuse_in_gguf("attn_logit_softcapping");
    if (!is_one_of({"gemma2", "gemma3"}) && c_.logit_softcap != 0) refuse_in_gguf("final_logit_softcapping");
  }

  void check_biases(const char* where, bool has, Biases readers_take) const {
    if ((has && readers_take == Biases::kNone) || (!has && readers_take == Biases::kAll))
      refuse_in_gguf(fmt::format("{} {} {} biases in {}: readers have {}", c_.model_type[0] == 'o' ? "an" : "a",
                                 c_.model_type, has ? "with" : "without", where, has ? "none" : "them"));
  }

  void check_heads() const {
    const bool fill_a_row =
        is_one_of({"phi2", "stablelm", "olmo", "olmoe", "chatglm"}) && c_.num_heads * c_.head_dim != c_.hidden_size;
    if (fill_a_row) refuse_in_gguf("head_dim: readers divide hidden_size by num_attention_heads");
    if (is("olmoe") && c_.num_kv_heads != c_.num_heads)
      refuse_in_gguf("fewer key/value heads than heads: readers of an olmoe norm keys as queries");
  }

  void check_scales() const {
    double usual = std::pow(static_cast<double>(c_.head_dim), -0.5);
    if (is("granite")) return;  // has a key
    // The 27 B models alone divide by the square root of their hidden size per head.
    const bool is_largest = (is("gemma2") && c_.num_layers == 46) || (is("gemma3") && c_.num_layers == 62);
    if (is_largest) usual = std::pow(static_cast<double>(c_.hidden_size / c_.num_heads), -0.5);
    const bool is_usual = std::all_of(c_.attention_scale.begin(), c_.attention_scale.end(),
                                      [&](double s) { return std::abs(s - usual) <= 1e-9 * usual; });
    if (is_usual) return;
    if (is_one_of({"gpt2", "starcoder"}))
      refuse_in_gguf("scale_attn_weights false and scale_attn_by_inverse_layer_idx true");
    refuse_in_gguf(fmt::format("this query_pre_attn_scalar: readers take {:.6g}", 1 / (usual * usual)));
  }

  std::int64_t window() const {
    std::int64_t window = 0;
    for (const std::int64_t of_layer : c_.attention_window) window = std::max(window, of_layer);
    return window;
  }

  /// Every `period`-th layer sees everything, in the others the window is one.
  bool slides_but_every(std::int64_t period) const {
    for (std::int64_t i = 0; i < c_.num_layers; ++i) {
      const auto of_layer = c_.attention_window.empty() ? 0 : c_.attention_window[static_cast<std::size_t>(i)];
      if (of_layer != ((i + 1) % period == 0 ? 0 : window())) return false;
    }
    return true;
  }

  void check_windows() {
    if (is_one_of({"gemma2", "gemma3"})) {
      const std::int64_t period = is("gemma2") ? 2 : 6;
      const bool is_readable = window() == 0 ? is("gemma3") : slides_but_every(period);
      if (!is_readable)
        refuse_in_gguf(fmt::format("these layer_types: readers let all layers of a {} but every {}th slide",
                                   c_.model_type, period));
      return;
    }
    if (window() > 0 && window() < c_.max_positions)
      out_.note = fmt::format(
          "readers of the file pass over the sliding window of {} tokens: in longer rows they attend to all\n",
          window());
  }

  void check_positions() const {
    if (out_.architecture == "falcon" && c_.position != families::PositionKind::kRotary) refuse_in_gguf("alibi true");
    if (is("smollm3"))
      for (std::int64_t i = 0; i < c_.num_layers; ++i)
        if (c_.rotary_layers[static_cast<std::size_t>(i)] != ((i + 1) % 4 != 0))
          refuse_in_gguf("these no_rope_layers: readers leave out every fourth");
    const bool is_whole = c_.rotary.dims == c_.head_dim;
    if (!is_whole && is_one_of({"llama", "mistral", "mixtral", "granite", "smollm3", "olmo", "olmoe"}))
      refuse_in_gguf("heads of which a part turns");
    if (!c_.window_rotary) return;
    if (c_.window_rotary->scaling != RopeScaling::kNone) refuse_in_gguf("rope_scaling of sliding layers");
  }

  // ---- keys

  void add_gpt2() {
    add_sizes(c_.max_positions, c_.intermediate_size);
    if (is("starcoder")) add_size("attention.head_count_kv", c_.num_kv_heads);
    add_number("attention.layer_norm_epsilon", c_.norm_eps);
  }

  void add_phi2() {
    refuse_scaling();
    add_sizes(c_.max_positions, c_.intermediate_size);
    add_size("attention.head_count_kv", c_.num_kv_heads);
    add_number("attention.layer_norm_epsilon", c_.norm_eps);
    add_size("rope.dimension_count", c_.rotary.dims);
    if (is("stablelm")) add("use_parallel_residual", c_.residual == families::ResidualKind::kParallel);
    add_unusual_theta();
  }

  void add_chatglm() {
    refuse_scaling();
    add_sizes(c_.max_positions, c_.intermediate_size);
    add_size("attention.head_count_kv", c_.num_kv_heads);
    add_number("attention.layer_norm_rms_epsilon", c_.norm_eps);
    add_size("rope.dimension_count", c_.rotary.dims);
    add_number("rope.freq_base", c_.rotary.theta);
  }

  void add_sizes(std::int64_t context, std::int64_t feed_forward) {
    add_size("block_count", c_.num_layers);
    add_size("context_length", context);
    add_size("embedding_length", c_.hidden_size);
    add_size("feed_forward_length", feed_forward);
    add_size("attention.head_count", c_.num_heads);
  }

  /// Of families whose files say so only where it is not 10,000.
  void add_unusual_theta() {
    if (c_.rotary.theta != families::RotarySettings().theta) add_number("rope.freq_base", c_.rotary.theta);
  }

  void add_neox() {
    refuse_scaling();
    add_sizes(c_.max_positions, c_.intermediate_size);
    add_size("rope.dimension_count", c_.rotary.dims);
    add("use_parallel_residual", c_.residual == families::ResidualKind::kParallel);
    add_number("attention.layer_norm_epsilon", c_.norm_eps);
    add_unusual_theta();
  }

  void add_bloom() {
    add_sizes(families::ConfigReader(json_, "config.json").get("seq_length", c_.hidden_size),
              c_.intermediate_size);  // the model itself has no longest row
    add_size("attention.head_count_kv", c_.num_heads);
    add_number("attention.layer_norm_epsilon", c_.norm_eps);
  }

  void add_falcon() {
    refuse_scaling();
    add_sizes(c_.max_positions, c_.intermediate_size);
    add("tensor_data_layout", std::string("jploski"));
    add_size("attention.head_count_kv", c_.num_kv_heads);
    add_number("attention.layer_norm_epsilon", c_.norm_eps);
    add_unusual_theta();
  }

  void add_gemma() {
    refuse_scaling();
    add_sizes(c_.max_positions, c_.intermediate_size);
    add_size("attention.head_count_kv", c_.num_kv_heads);
    add_number("attention.layer_norm_rms_epsilon", c_.norm_eps);
    add_head_sizes();
    add_unusual_theta();
    if (is("gemma")) return;
    add_number("attn_logit_softcapping", c_.attention_softcap);
    add_number("final_logit_softcapping", c_.logit_softcap);
    add_size("attention.sliding_window", window());
  }

  void add_phi3() {
    const auto& r = c_.rotary;
    if (r.scaling != RopeScaling::kNone && r.scaling != RopeScaling::kLongRope)
      refuse_in_gguf("this rope_scaling of phi3: longrope is written");
    add_sizes(c_.max_positions, c_.intermediate_size);
    add_size("rope.scaling.original_context_length",
             r.original_positions > 0 ? r.original_positions : c_.max_positions);
    add_size("attention.head_count_kv", c_.num_kv_heads);
    add_number("attention.layer_norm_rms_epsilon", c_.norm_eps);
    add_size("rope.dimension_count", r.dims);
    add_number("rope.freq_base", r.theta);
    add_size("attention.sliding_window", window());
    if (r.scaling != RopeScaling::kLongRope) return;
    add_number("rope.scaling.attn_factor", r.table_factor);
    for (const auto& [name, factors] :
         {std::pair("rope_factors_long.weight", &r.long_factors), {"rope_factors_short.weight", &r.short_factors}})
      add_factors(name, *factors);
  }

  void add_usual() {
    add_sizes(c_.max_positions, c_.intermediate_size);
    add_size("attention.head_count_kv", c_.num_kv_heads);
    add_number("rope.freq_base", c_.rotary.theta);
    if (c_.window_rotary) add_number("rope.freq_base_swa", c_.window_rotary->theta);
    const bool has_means = is_one_of({"starcoder2", "olmo"});
    add_number(has_means ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", c_.norm_eps);
    if (c_.clip_qkv > 0) add_number("attention.clamp_kqv", c_.clip_qkv);
    const bool is_usual_size = c_.head_dim * c_.num_heads == c_.hidden_size;
    if (is_one_of({"llama", "qwen3", "qwen3moe", "gemma3", "glm4"}) || !is_usual_size) add_head_sizes();
    if (is("glm4")) add_size("rope.dimension_count", c_.rotary.dims);
    if (c_.experts.count > 0) {
      add_size("expert_count", c_.experts.count);
      add_size("expert_used_count", c_.experts.per_token);
    }
    if (is("qwen3moe")) add_size("expert_feed_forward_length", c_.experts.intermediate_size);
    if (is("gemma3") && c_.logit_softcap != 0) add_number("final_logit_softcapping", c_.logit_softcap);
    if (is("gemma3") && window() > 0) add_size("attention.sliding_window", window());
    if (is("granite")) add_granite();
    if (is_one_of({"llama", "mistral", "mixtral", "granite", "smollm3"})) {
      add_size("vocab_size", c_.vocab_size);
      add_size("rope.dimension_count", c_.rotary.dims);
    }
    add_scaling();
  }

  void add_head_sizes() {
    add_size("attention.key_length", c_.head_dim);
    add_size("attention.value_length", c_.head_dim);
  }

  void add_granite() {
    const double scale =
        c_.attention_scale.empty() ? std::pow(static_cast<double>(c_.head_dim), -0.5) : c_.attention_scale[0];
    add_number("attention.scale", scale);
    add_number("embedding_scale", c_.embedding_scale);
    add_number("residual_scale", c_.branch_scale);
    add_number("logit_scale", 1 / c_.logit_scale);  // logits are divided by it
  }

  void refuse_scaling() const {
    if (c_.rotary.scaling != RopeScaling::kNone)
      refuse_in_gguf("this rope_scaling of " + c_.model_type + ": none is written for it");
  }

  void add_scaling() {
    const families::RotarySettings& r = c_.rotary;
    if (r.scaling == RopeScaling::kLinear) {
      add("rope.scaling.type", std::string("linear"));
      add_number("rope.scaling.factor", r.factor);
    } else if (r.scaling == RopeScaling::kYarn) {
      const double usual_factor = r.factor <= 1 ? 1 : 0.1 * std::log(r.factor) + 1;
      if (!r.truncate || std::abs(r.table_factor - usual_factor) >= 1e-9)
        refuse_in_gguf("truncate, mscale and attention_factor of yarn: leave them out");
      add("rope.scaling.type", std::string("yarn"));
      add_number("rope.scaling.factor", r.factor);
      add_size("rope.scaling.original_context_length", r.original_positions);
      if (r.beta_fast != families::RotarySettings().beta_fast) add_number("rope.scaling.yarn_beta_fast", r.beta_fast);
      if (r.beta_slow != families::RotarySettings().beta_slow) add_number("rope.scaling.yarn_beta_slow", r.beta_slow);
    } else if (r.scaling == RopeScaling::kLlama3 && is_one_of({"llama", "mistral", "mixtral", "granite"})) {
      add_llama3_divisors();
    } else if (r.scaling != RopeScaling::kNone) {
      refuse_in_gguf("this rope_scaling of " + c_.model_type +
                     ": linear, yarn and (llama, granite) llama3 are written");
    }
  }

  /// What the frequencies are divided by.
  void add_llama3_divisors() {
    const auto& r = c_.rotary;
    std::vector<double> divisors;
    for (std::int64_t i = 0; i < r.dims / 2; ++i) {
      const double turns = static_cast<double>(r.original_positions) *
                           std::pow(r.theta, -2.0 * static_cast<double>(i) / static_cast<double>(r.dims)) / (2 * M_PI);
      const double smooth = std::clamp((turns - r.low_frequency) / (r.high_frequency - r.low_frequency), 0.0, 1.0);
      divisors.push_back(1 / ((1 - smooth) / r.factor + smooth));
    }
    add_factors("rope_freqs.weight", divisors);
  }

  void add_factors(const char* name, const std::vector<double>& factors) {
    ExportedTensor tensor;
    tensor.plan = {name, {static_cast<std::int64_t>(factors.size())}, io::kGgufF32};
    for (const double f : factors) tensor.values.push_back(static_cast<float>(f));
    out_.tensors.push_back(std::move(tensor));
  }

  const std::string& family_;
  const DecoderConfig& c_;
  const nlohmann::json& json_;
  const Reader& reader_;
  GgufExport out_;
};

}  // namespace

void refuse_in_gguf(const std::string& what) {
  throw ConfigError("--gguf: the file has no key for " + what, "gguf");
}

GgufExport gguf_keys(const std::string& family, const DecoderConfig& config, const nlohmann::json& json) {
  return Keys(family, config, json).build();
}

}  // namespace tessera::models
