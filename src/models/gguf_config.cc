#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "io/gguf.h"
#include "models/gguf_bert.h"
#include "models/gguf_model.h"
#include "models/gguf_names.h"
#include "models/gguf_t5.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using nlohmann::json;

/// A key of the file, without the architecture before it, and config.json's.
struct Key {
  const char* stored;
  const char* name;
};

const std::vector<Key> kLlamaKeys = {{"context_length", "max_position_embeddings"},
                                     {"block_count", "num_hidden_layers"},
                                     {"feed_forward_length", "intermediate_size"},
                                     {"embedding_length", "hidden_size"},
                                     {"rope.freq_base", "rope_theta"},
                                     {"attention.head_count", "num_attention_heads"},
                                     {"attention.head_count_kv", "num_key_value_heads"},
                                     {"attention.layer_norm_rms_epsilon", "rms_norm_eps"}};
const std::vector<Key> kGpt2Keys = {{"block_count", "n_layer"},
                                    {"context_length", "n_positions"},
                                    {"context_length", "n_ctx"},
                                    {"embedding_length", "n_embd"},
                                    {"feed_forward_length", "n_inner"},
                                    {"attention.head_count", "n_head"},
                                    {"attention.layer_norm_epsilon", "layer_norm_epsilon"}};
const std::vector<Key> kBloomKeys = {{"block_count", "n_layer"},
                                     {"embedding_length", "hidden_size"},
                                     {"attention.head_count", "n_head"},
                                     {"attention.layer_norm_epsilon", "layer_norm_epsilon"}};
const std::vector<Key> kFalconKeys = {{"context_length", "max_position_embeddings"},
                                      {"block_count", "num_hidden_layers"},
                                      {"embedding_length", "hidden_size"},
                                      {"feed_forward_length", "ffn_hidden_size"},
                                      {"rope.freq_base", "rope_theta"},
                                      {"attention.head_count", "num_attention_heads"},
                                      {"attention.head_count_kv", "num_kv_heads"},
                                      {"attention.layer_norm_epsilon", "layer_norm_epsilon"}};
const std::vector<Key> kNeoxKeys = {{"context_length", "max_position_embeddings"},
                                    {"block_count", "num_hidden_layers"},
                                    {"feed_forward_length", "intermediate_size"},
                                    {"embedding_length", "hidden_size"},
                                    {"rope.freq_base", "rotary_emb_base"},
                                    {"attention.head_count", "num_attention_heads"},
                                    {"attention.layer_norm_epsilon", "layer_norm_eps"},
                                    {"use_parallel_residual", "use_parallel_residual"}};

const std::vector<Key> kStarcoderKeys = [] {
  auto keys = kLlamaKeys;
  keys.back() = {"attention.layer_norm_epsilon", "norm_epsilon"};
  return keys;
}();

const std::vector<Key> kPhiKeys = [] {
  auto keys = kLlamaKeys;
  keys.back() = {"attention.layer_norm_epsilon", "layer_norm_eps"};
  return keys;
}();

bool is_phi_like(const std::string& family) {
  return family == "phi2" || family == "stablelm";
}

bool is_glm(const std::string& family) {
  return family == "chatglm" || family == "glm4";
}

const std::vector<Key>& keys_of(const std::string& family) {
  if (family == "gpt2" || family == "starcoder") return kGpt2Keys;
  if (is_phi_like(family)) return kPhiKeys;
  if (family == "bloom") return kBloomKeys;
  if (family.starts_with("falcon")) return kFalconKeys;
  if (family == "starcoder2") return kStarcoderKeys;
  if (family == "gptneox") return kNeoxKeys;
  return kLlamaKeys;
}

/// What changes a model's numbers and is read nowhere below, with the values that change nothing.
struct Unread {
  const char* stored;
  double neutral, also_neutral;
};
constexpr Unread kUnread[] = {{"attention.scale", 0, 0},
                              {"attention.clamp_kqv", 0, 0},
                              {"attention.temperature_length", 0, 0},
                              {"embedding_scale", 0, 1},
                              {"residual_scale", 0, 1},
                              {"logit_scale", 0, 1},
                              {"expert_weights_scale", 0, 1},
                              {"router_logit_softcapping", 0, 0},
                              {"expert_gating_func", 0, 1},
                              {"rope.scaling.attn_factor", 0, 1},
                              {"rope.scaling.yarn_ext_factor", 1, 1},
                              {"rope.scaling.yarn_attn_factor", 1, 1},
                              {"rope.scaling.yarn_log_multiplier", 0, 0}};

/// But of Granite, which has them; 0 and left out: a usual value.
const std::vector<Key> kGraniteScales = {{"attention.scale", "attention_multiplier"},
                                         {"embedding_scale", "embedding_multiplier"},
                                         {"residual_scale", "residual_multiplier"},
                                         {"logit_scale", "logits_scaling"}};

json to_json(const GgufValue& value) {
  return std::visit([](const auto& v) { return json(v); }, value);
}

class Config {
 public:
  explicit Config(const io::GgufFile& file)
      : file_(file), family_(gguf_family(file)), architecture_(*file.header().text("general.architecture")) {}

  json build() {
    refuse_unread();
    if (architecture_ == "t5") return build_encoder(gguf_t5_config(file_), !file_.find("output.weight"));
    if (architecture_ == "bert") return build_encoder(gguf_bert_config(file_), true);
    out_["model_type"] = gguf_model_type(family_);
    out_["torch_dtype"] = "float32";
    refuse_other_attention();
    // Where the file says none; config.json's defaults are others.
    if (family_ == "mixtral" || family_ == "gemma3" || family_ == "smollm3") out_["rope_theta"] = 10000.0;
    for (const auto& k : keys_of(family_)) copy(k.stored, k.name);
    add_vocabulary();
    const bool is_falcon = architecture_ == "falcon";
    out_["tie_word_embeddings"] = !file_.find("output.weight");
    if (&keys_of(family_) == &kLlamaKeys || is_phi_like(family_)) add_heads();
    if (is_llama()) add_window();
    if (family_ == "mixtral")
      copy("expert_count", "num_local_experts"), copy("expert_used_count", "num_experts_per_tok");
    if (architecture_.starts_with("gemma")) add_gemma();
    if (family_ == "granite") add_granite();
    if (family_ == "qwen3moe" || family_ == "olmoe") add_qwen_experts();
    if (family_ == "starcoder2") add_starcoder();
    if (family_ == "phi3") add_phi3();
    if (is_falcon) add_falcon();
    if (family_ == "gptneox") add_neox();
    if (family_ == "stablelm") add_stablelm();
    if (family_ == "olmo") copy("attention.clamp_kqv", "clip_qkv");
    if (family_ == "starcoder") out_["multi_query"] = integer("attention.head_count_kv") == 1;
    add_rope_scaling();
    return std::move(out_);
  }

 private:
  json build_encoder(json config, bool is_tied) {
    out_ = std::move(config);
    out_["torch_dtype"] = "float32";
    out_["tie_word_embeddings"] = is_tied;
    add_vocabulary();
    return std::move(out_);
  }

  std::string key(const char* name) const { return architecture_ + "." + name; }

  void copy(const char* stored, const char* name) {
    const auto found = file_.header().metadata.find(key(stored));
    if (found == file_.header().metadata.end()) return;
    auto value = to_json(found->second);
    if (value.is_array())
      throw DataError(fmt::format("{}: key '{}' differs from layer to layer, which is not supported",
                                  file_.header().path, key(stored)),
                      file_.header().path);
    out_[name] = std::move(value);
  }

  std::int64_t integer(const char* stored) const {
    const auto value = file_.header().integer(key(stored));
    if (!value || *value < 1)
      throw DataError(fmt::format("{}: key '{}' must be a positive integer", file_.header().path, key(stored)),
                      file_.header().path);
    return *value;
  }

  void add_vocabulary() {
    const auto* table = file_.find("token_embd.weight");
    if (table && table->shape.size() == 2)
      out_["vocab_size"] = table->shape[0];
    else if (const auto* tokens = file_.header().texts("tokenizer.ggml.tokens"))
      out_["vocab_size"] = tokens->size();
    for (const auto& [stored, name] : {Key{"bos", "bos_token_id"}, Key{"eos", "eos_token_id"},
                                       Key{"padding", "pad_token_id"}, Key{"unknown", "unk_token_id"}})
      if (const auto id = file_.header().integer(fmt::format("tokenizer.ggml.{}_token_id", stored))) out_[name] = *id;
    if (!out_.contains("pad_token_id")) out_["pad_token_id"] = nullptr;  // not the family's
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(file_.header().path + ": " + what, file_.header().path);
  }

  static bool is_granites(const std::string& stored) {
    return std::any_of(kGraniteScales.begin(), kGraniteScales.end(), [&](const Key& k) { return stored == k.stored; });
  }

  void refuse_unread() const {
    const auto parts = file_.header().integer("split.count").value_or(1);
    if (parts > 1)
      fail(
          fmt::format("key 'split.count' is {}: a model in several files is not supported; join them with "
                      "llama-gguf-split --merge",
                      parts));
    for (const Unread& unread : kUnread) {
      if (family_ == "granite" && is_granites(unread.stored)) continue;
      if (family_ == "olmo" && std::string(unread.stored) == "attention.clamp_kqv") continue;
      if (family_ == "phi3" && std::string(unread.stored) == "rope.scaling.attn_factor") continue;
      const auto value = file_.header().number(key(unread.stored));
      if (value && *value != unread.neutral && *value != unread.also_neutral)
        fail(fmt::format("key '{}' is {}, which is not supported", key(unread.stored), *value));
    }
  }

  void refuse_other_attention() const {
    const auto& header = file_.header();
    if (header.boolean(key("attention.causal")) == false)
      fail(fmt::format("key '{}' is false: a decoder whose tokens see those after them is not supported",
                       key("attention.causal")));
    const auto window = header.integer(key("attention.sliding_window")).value_or(0);
    if (family_ == "olmo2" && window != 0)
      fail(fmt::format("key '{}' is {}: OLMo 3 is not supported", key("attention.sliding_window"), window));
    if (family_ == "gemma2" || family_ == "gemma3") check_pattern(family_ == "gemma2" ? 2 : 6);
  }

  /// Every `period`th layer has no window; files say a period, or whether each layer has one.
  void check_pattern(std::int64_t period) const {
    const auto stored = key("attention.sliding_window_pattern");
    const auto found = file_.header().metadata.find(stored);
    if (found == file_.header().metadata.end()) return;
    const auto value = to_json(found->second);
    bool same = value == period || value.is_array();
    for (std::size_t i = 0; value.is_array() && i < value.size(); ++i)
      same = same && (value[i] != 0) == ((static_cast<std::int64_t>(i) + 1) % period != 0);
    if (!same)
      fail(fmt::format("key '{}' is {}; only every {}. layer without a window is supported", stored, json_text(value),
                       period));
  }

  bool is_llama() const { return family_ == "llama" || family_ == "mistral" || family_ == "mixtral"; }

  /// The size of a head, how much of it turns, and whether its projections have biases.
  void add_heads() {
    const auto& header = file_.header();
    if (!out_.contains("num_key_value_heads")) copy("attention.head_count", "num_key_value_heads");
    const auto size = header.integer(key("attention.key_length")),
               of_values = header.integer(key("attention.value_length")),
               turned = header.integer(key("rope.dimension_count"));
    if (size && of_values && *of_values != *size)
      fail(fmt::format("keys of {} and values of {} elements a head are not supported", *size, *of_values));
    const bool said_by_turned = !size && turned && is_llama();  // in older files
    if (size || said_by_turned) out_["head_dim"] = size ? *size : *turned;
    if (!size && is_glm(family_))  // config.json's default is another
      out_["head_dim"] = integer("embedding_length") / integer("attention.head_count");
    const bool says_biases = family_ != "qwen2" && !is_phi_like(family_), has_biases = file_.find("blk.0.attn_q.bias");
    if (says_biases && (has_biases || is_glm(family_))) out_["attention_bias"] = has_biases;
    if (says_biases && file_.find("blk.0.ffn_up.bias")) out_["mlp_bias"] = true;
    if (!turned || said_by_turned) return;
    const auto head = size.value_or(integer("embedding_length") / integer("attention.head_count"));
    const bool may_turn_in_part = family_ == "phi3" || is_phi_like(family_) || is_glm(family_);
    if (*turned == head && (family_ == "phi3" || !may_turn_in_part)) return;
    if (!may_turn_in_part) fail(fmt::format("{} of a head's {} elements turn, which is not supported", *turned, head));
    out_["partial_rotary_factor"] = static_cast<double>(*turned) / static_cast<double>(head);
  }

  void add_granite() {
    for (const Key& k : kGraniteScales)
      if (file_.header().number(key(k.stored)).value_or(0) != 0) copy(k.stored, k.name);
    if (!out_.contains("attention_multiplier"))
      out_["attention_multiplier"] =
          std::pow(static_cast<double>(integer("embedding_length") / integer("attention.head_count")), -0.5);
  }

  void add_qwen_experts() {
    copy("expert_count", "num_experts");
    copy("expert_used_count", "num_experts_per_tok");
    copy("expert_feed_forward_length", "moe_intermediate_size");
    out_["norm_topk_prob"] = family_ == "qwen3moe";
  }

  void add_stablelm() {
    out_["use_parallel_residual"] = !file_.find("blk.0.ffn_norm.weight");
    out_["use_qkv_bias"] = file_.find("blk.0.attn_q.bias") != nullptr;
  }

  void add_starcoder() {
    out_["use_bias"] = file_.find("blk.0.attn_q.bias") != nullptr;
    out_["hidden_act"] = "gelu_pytorch_tanh";
  }

  void add_gemma() {
    out_["hidden_activation"] = "gelu_pytorch_tanh";
    if (family_ == "gemma") return;
    copy("attention.sliding_window", "sliding_window");
    copy("attn_logit_softcapping", "attn_logit_softcapping");
    copy("final_logit_softcapping", "final_logit_softcapping");
    if (family_ == "gemma3") {
      copy("rope.freq_base_swa", "rope_local_base_freq");
      const auto window = file_.header().integer(key("attention.sliding_window"));
      if (window.value_or(0) == 0) out_["sliding_window_pattern"] = 1;  // none slides
    }
    // Not in the file: the 27 B models alone (46 and 62 layers) divide by the square root of their hidden size per
    // head.
    const bool largest = integer("block_count") == (family_ == "gemma2" ? 46 : 62);
    if (largest)
      out_["query_pre_attn_scalar"] = integer("embedding_length") / integer("attention.head_count");
    else
      copy("attention.key_length", "query_pre_attn_scalar");
  }

  /// 0 says that there is none; in config.json it hides every token.
  void add_window() {
    if (file_.header().integer(key("attention.sliding_window")).value_or(0) != 0)
      copy("attention.sliding_window", "sliding_window");
  }

  void add_phi3() {
    add_window();
    copy("rope.scaling.original_context_length", "original_max_position_embeddings");
    if (!file_.find("rope_factors_long.weight") || !file_.find("rope_factors_short.weight")) return;
    out_["rope_scaling"] = {{"type", "longrope"}, {"rope_type", "longrope"}};
    for (const char* which : {"long", "short"})
      out_["rope_scaling"][which + std::string("_factor")] = values(fmt::format("rope_factors_{}.weight", which));
    const auto factor = file_.header().number(key("rope.scaling.attn_factor"));
    if (factor && std::abs(*factor - usual_attention_factor()) > 1e-5)
      out_["rope_scaling"]["attention_factor"] = *factor;
  }

  /// Phi-3's, by how much longer its context has become.
  double usual_attention_factor() const {
    const auto original = static_cast<double>(integer("rope.scaling.original_context_length"));
    const double scale = static_cast<double>(integer("context_length")) / original;
    return scale <= 1 ? 1 : std::sqrt(1 + std::log(scale) / std::log(original));
  }

  void add_falcon() {
    const auto kv = file_.header().integer(key("attention.head_count_kv")).value_or(1);
    const bool two_norms = file_.find("blk.0.attn_norm_2.weight");
    out_["new_decoder_architecture"] = two_norms;
    out_["multi_query"] = kv == 1;
    out_["parallel_attn"] = true;
    out_["bias"] = file_.find("blk.0.attn_qkv.bias") != nullptr;
    out_["alibi"] = false;
  }

  void add_neox() {
    const auto size = integer("embedding_length") / integer("attention.head_count");
    const auto rotated = file_.header().integer(key("rope.dimension_count")).value_or(size);
    out_["rotary_pct"] = static_cast<double>(rotated) / static_cast<double>(size);
    out_["attention_bias"] = file_.find("blk.0.attn_qkv.bias") != nullptr;
  }

  std::vector<double> values(const std::string& tensor) const {
    const auto t = io::read_tensor(file_, tensor).to(at::kDouble).reshape(-1).contiguous();
    return {t.const_data_ptr<double>(), t.const_data_ptr<double>() + t.numel()};
  }

  void add_rope_scaling() {
    const GgufHeader& header = file_.header();
    auto factor = header.number(key("rope.scaling.factor"));
    if (!factor) factor = header.number(key("rope.scale_linear"));  // of older files
    const bool scales = factor && *factor != 0 && *factor != 1;
    const auto type = header.text(key("rope.scaling.type")).value_or(scales ? "linear" : "none");
    if (type == "yarn" || (type == "linear" && scales)) {
      out_["rope_scaling"] = {{"type", type}, {"rope_type", type}};
      if (factor) out_["rope_scaling"]["factor"] = *factor;
      if (const auto length = header.integer(key("rope.scaling.original_context_length")))
        out_["rope_scaling"]["original_max_position_embeddings"] = *length;
      for (const char* name : {"beta_fast", "beta_slow"})
        if (const auto beta = header.number(key("rope.scaling.yarn_") + name)) out_["rope_scaling"][name] = *beta;
    } else if (type != "none" && type != "linear" && !(type == "longrope" && family_ == "phi3")) {
      fail(fmt::format("key '{}' is '{}', which is not supported for architecture '{}'", key("rope.scaling.type"), type,
                       family_));
    }
    if (family_ != "phi3" && (file_.find("rope_factors_long.weight") || file_.find("rope_factors_short.weight")))
      fail(fmt::format("rope_factors_long and rope_factors_short of architecture '{}' are not supported", family_));
    if (file_.find("rope_freqs.weight")) add_llama3_scaling();
  }

  /// Llama 3.1 files hold the divisors of the frequencies, not what they were made from. The published models agree in
  /// all but the factor; whether the divisors are theirs is checked.
  void add_llama3_scaling() {
    const auto found = values("rope_freqs.weight");
    double factor = 1;
    for (double v : found) factor = std::max(factor, v);
    const double base = file_.header().number(key("rope.freq_base")).value_or(10000.0), context = 8192, low = 1,
                 high = 4;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double turns = context * std::pow(base, -static_cast<double>(i) / static_cast<double>(found.size())) /
                           (2 * 3.14159265358979323846);
      const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      const double expected = 1 / ((1 - smooth) / factor + smooth);
      if (std::abs(expected - found[i]) > 1e-3 * expected)
        throw DataError(fmt::format("{}: rope_freqs.weight[{}] is {}; the scaling of Llama 3.1 with factor {} has {}",
                                    file_.header().path, i, found[i], factor, expected),
                        file_.header().path);
    }
    if (factor == 1) return;
    out_["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", factor},
                            {"low_freq_factor", low},
                            {"high_freq_factor", high},
                            {"original_max_position_embeddings", 8192}};
  }

  const io::GgufFile& file_;
  std::string family_, architecture_;
  json out_ = json::object();
};

}  // namespace

json gguf_config(const io::GgufFile& file) {
  return Config(file).build();
}

}  // namespace tessera::models
