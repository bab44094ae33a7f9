#include "models/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/nearest.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

enum class How { kPlain, kRotaryQuery, kRotaryKey, kInterleaved, kGrouped, kTransposed, kMinusOne, kExperts, kIgnored };

struct Name {
  const char* stored;  // without .weight and .bias
  const char* name;    // "{}" stands for the expert
  How how = How::kPlain;
};

struct Family {
  const char* name;
  const char* layers;  // what "blk.N." becomes, "{}" for N
  std::vector<Name> outside;
  std::vector<Name> inside;  // of a block
};

std::vector<Name> join(std::vector<Name> a, const std::vector<Name>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<Name> kLlamaOutside = {{"token_embd", "model.embed_tokens"},
                                         {"output_norm", "model.norm"},
                                         {"output", "lm_head"},
                                         {"rope_freqs", "", How::kIgnored},
                                         {"rope_factors_long", "", How::kIgnored},
                                         {"rope_factors_short", "", How::kIgnored}};
const std::vector<Name> kSharedAttention = {
    {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"}, {"attn_rot_embd", "", How::kIgnored}};
const std::vector<Name> kPlainAttention =
    join({{"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"}}, kSharedAttention);
const std::vector<Name> kRotatedAttention =
    join({{"attn_q", "self_attn.q_proj", How::kRotaryQuery}, {"attn_k", "self_attn.k_proj", How::kRotaryKey}},
         kSharedAttention);
const std::vector<Name> kGatedMlp = {
    {"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"}};
const std::vector<Name> kTwoNorms = {{"attn_norm", "input_layernorm"}, {"ffn_norm", "post_attention_layernorm"}};
const std::vector<Name> kHeadNorms = {{"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"}};
const std::vector<Name> kExperts = {{"ffn_gate_inp", "block_sparse_moe.gate"},
                                    {"ffn_gate_exps", "block_sparse_moe.experts.{}.w1", How::kExperts},
                                    {"ffn_down_exps", "block_sparse_moe.experts.{}.w2", How::kExperts},
                                    {"ffn_up_exps", "block_sparse_moe.experts.{}.w3", How::kExperts}};

const std::vector<Family>& family_table() {
  constexpr auto kLayers = "model.layers.{}.";
  constexpr auto kShifted = How::kMinusOne;
  const std::vector<Name> gemma_outside = {
      {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm", kShifted}, {"output", "lm_head"}};
  const auto heads_of_bloom = How::kInterleaved;
  static const std::vector<Family> table = {
      {"llama", kLayers, kLlamaOutside, join(join(kTwoNorms, kRotatedAttention), kGatedMlp)},
      {"mistral", kLayers, kLlamaOutside, join(join(kTwoNorms, kRotatedAttention), kGatedMlp)},
      {"mixtral", kLayers, kLlamaOutside, join(join(kTwoNorms, kRotatedAttention), kExperts)},
      {"qwen2", kLayers, kLlamaOutside, join(join(kTwoNorms, kPlainAttention), kGatedMlp)},
      {"qwen3", kLayers, kLlamaOutside, join(join(join(kTwoNorms, kPlainAttention), kHeadNorms), kGatedMlp)},
      {"gemma", kLayers, gemma_outside,
       join(join({{"attn_norm", "input_layernorm", kShifted}, {"ffn_norm", "post_attention_layernorm", kShifted}},
                 kPlainAttention),
            kGatedMlp)},
      {"gemma2", kLayers, gemma_outside,
       join(join({{"attn_norm", "input_layernorm", kShifted},
                  {"post_attention_norm", "post_attention_layernorm", kShifted},
                  {"ffn_norm", "pre_feedforward_layernorm", kShifted},
                  {"post_ffw_norm", "post_feedforward_layernorm", kShifted}},
                 kPlainAttention),
            kGatedMlp)},
      {"phi3", kLayers, kLlamaOutside,
       join(kTwoNorms, {{"attn_qkv", "self_attn.qkv_proj"},
                        {"attn_output", "self_attn.o_proj"},
                        {"ffn_up", "mlp.gate_up_proj"},
                        {"ffn_down", "mlp.down_proj"}})},
      {"gpt2",
       "transformer.h.{}.",
       {{"token_embd", "transformer.wte"},
        {"position_embd", "transformer.wpe"},
        {"output_norm", "transformer.ln_f"},
        {"output", "lm_head"}},
       {{"attn_norm", "ln_1"},
        {"ffn_norm", "ln_2"},
        {"attn_qkv", "attn.c_attn", How::kTransposed},
        {"attn_output", "attn.c_proj", How::kTransposed},
        {"ffn_up", "mlp.c_fc", How::kTransposed},
        {"ffn_down", "mlp.c_proj", How::kTransposed}}},
      {"gptneox",
       "gpt_neox.layers.{}.",
       {{"token_embd", "gpt_neox.embed_in"}, {"output_norm", "gpt_neox.final_layer_norm"}, {"output", "embed_out"}},
       join(kTwoNorms, {{"attn_qkv", "attention.query_key_value", heads_of_bloom},
                        {"attn_output", "attention.dense"},
                        {"ffn_up", "mlp.dense_h_to_4h"},
                        {"ffn_down", "mlp.dense_4h_to_h"}})},
      {"bloom",
       "transformer.h.{}.",
       {{"token_embd", "transformer.word_embeddings"},
        {"token_embd_norm", "transformer.word_embeddings_layernorm"},
        {"output_norm", "transformer.ln_f"},
        {"output", "lm_head"}},
       join(kTwoNorms, {{"attn_qkv", "self_attention.query_key_value", heads_of_bloom},
                        {"attn_output", "self_attention.dense"},
                        {"ffn_up", "mlp.dense_h_to_4h"},
                        {"ffn_down", "mlp.dense_4h_to_h"}})},
      {"falcon",
       "transformer.h.{}.",
       {{"token_embd", "transformer.word_embeddings"}, {"output_norm", "transformer.ln_f"}, {"output", "lm_head"}},
       {{"attn_norm", "input_layernorm"},
        {"attn_qkv", "self_attention.query_key_value", How::kGrouped},
        {"attn_output", "self_attention.dense"},
        {"ffn_up", "mlp.dense_h_to_4h"},
        {"ffn_down", "mlp.dense_4h_to_h"}}},
      {"falcon with two norms",
       "transformer.h.{}.",
       {{"token_embd", "transformer.word_embeddings"}, {"output_norm", "transformer.ln_f"}, {"output", "lm_head"}},
       {{"attn_norm", "ln_mlp"},
        {"attn_norm_2", "ln_attn"},
        {"attn_qkv", "self_attention.query_key_value", How::kGrouped},
        {"attn_output", "self_attention.dense"},
        {"ffn_up", "mlp.dense_h_to_4h"},
        {"ffn_down", "mlp.dense_4h_to_h"}}},
  };
  return table;
}

/// "blk.3.attn_q.weight" in its parts.
struct Parts {
  std::int64_t block = -1;
  std::string plain, suffix;
};

Parts split(const std::string& name) {
  Parts parts;
  auto rest = name;
  if (name.starts_with("blk.")) {
    const auto dot = name.find('.', 4);
    const auto digits = name.substr(4, dot == std::string::npos ? dot : dot - 4);
    const bool number = !digits.empty() && digits.size() < 6 &&
                        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number && dot != std::string::npos) {
      parts.block = std::stoll(digits);
      rest = name.substr(dot + 1);
    }
  }
  const auto dot = rest.rfind('.');
  parts.plain = rest.substr(0, dot);
  if (dot != std::string::npos) parts.suffix = rest.substr(dot);
  return parts;
}

GgufHeads heads_of(const io::GgufFile& file) {
  const auto architecture = file.header().text("general.architecture").value_or("");
  GgufHeads h;
  h.heads = file.header().integer(architecture + ".attention.head_count").value_or(0);
  h.key_value_heads = file.header().integer(architecture + ".attention.head_count_kv").value_or(h.heads);
  return h;
}

class Builder {
 public:
  explicit Builder(const io::GgufFile& file) : heads_(heads_of(file)) {
    auto name = gguf_family(file);
    if (name == "falcon" && file.find("blk.0.attn_norm_2.weight")) name = "falcon with two norms";
    for (const auto& f : family_table())
      if (f.name == name) family_ = &f;
    TESSERA_CHECK(family_, "gguf_family() names a known family");
  }

  void add(const io::TensorInfo& info) {
    const auto parts = split(info.name);
    const auto& names = parts.block < 0 ? family_->outside : family_->inside;
    const auto found = std::find_if(names.begin(), names.end(), [&](const Name& n) { return parts.plain == n.stored; });
    if (found == names.end()) fail(info, fmt::format("not a tensor of architecture '{}'", family_->name));
    if (found->how == How::kIgnored) return;
    auto prefix = parts.block < 0 ? std::string() : fmt::format(fmt::runtime(family_->layers), parts.block);
    if (found->how == How::kExperts) return add_experts(info, prefix + found->name + parts.suffix);
    GgufView view{prefix + found->name + parts.suffix, info.name, info.shape};
    arrange(view, found->how, info);
    views.push_back(std::move(view));
  }

  std::vector<GgufView> views;

 private:
  [[noreturn]] void fail(const io::TensorInfo& info, const std::string& message) const {
    throw DataError(fmt::format("{}: tensor '{}': {}", info.file, info.name, message), info.file);
  }

  void add_experts(const io::TensorInfo& info, const std::string& pattern) {
    if (info.shape.size() != 3) fail(info, "expected [experts, rows, columns]");
    for (std::int64_t e = 0; e < info.shape[0]; ++e) {
      views.push_back({fmt::format(fmt::runtime(pattern), e),
                       info.name,
                       {info.shape[1], info.shape[2]},
                       GgufView::Kind::kRows,
                       expert_rows(info.shape[1], e)});
    }
  }

  void arrange(GgufView& view, How how, const io::TensorInfo& info) const {
    if (how == How::kPlain) return;
    if (how == How::kMinusOne) {
      view.kind = GgufView::Kind::kMinusOne;
      return;
    }
    if (how == How::kTransposed) {
      if (view.shape.size() != 2) return;  // a bias
      view.kind = GgufView::Kind::kTransposed;
      std::swap(view.shape[0], view.shape[1]);
      return;
    }
    const auto rows = view.shape.empty() ? 0 : view.shape[0];
    const auto parts = how == How::kRotaryQuery   ? 2 * heads_.heads
                       : how == How::kRotaryKey   ? 2 * heads_.key_value_heads
                       : how == How::kInterleaved ? 3 * heads_.heads
                                                  : heads_.heads + 2 * heads_.key_value_heads;
    const bool whole = heads_.heads > 0 && heads_.key_value_heads > 0 && heads_.heads % heads_.key_value_heads == 0;
    if (!whole || rows % parts != 0)
      fail(info, fmt::format("{} rows do not belong to {} heads and {} key/value heads", rows, heads_.heads,
                             heads_.key_value_heads));
    view.kind = GgufView::Kind::kRows;
    view.stored_row = how == How::kRotaryQuery   ? rotary_rows(rows, heads_.heads)
                      : how == How::kRotaryKey   ? rotary_rows(rows, heads_.key_value_heads)
                      : how == How::kInterleaved ? interleaved_rows(rows, heads_.heads)
                                                 : grouped_rows(rows, heads_);
  }

  GgufHeads heads_;
  const Family* family_ = nullptr;
};

}  // namespace

std::vector<std::string> gguf_families() {
  std::vector<std::string> names;
  for (const auto& f : family_table())
    if (std::string(f.name).find(' ') == std::string::npos) names.emplace_back(f.name);
  return names;
}

std::string gguf_family(const io::GgufFile& file) {
  const auto architecture = file.header().text("general.architecture");
  if (!architecture)
    throw DataError(file.header().path + ": key 'general.architecture' is missing", file.header().path);
  const bool experts = file.header().integer(*architecture + ".expert_count").value_or(0) > 0;
  if (*architecture == "llama" && experts) return "mixtral";
  const auto known = gguf_families();
  if (std::find(known.begin(), known.end(), *architecture) == known.end()) {
    std::string list;
    for (const auto& k : known) list += (list.empty() ? "" : ", ") + k;
    throw ConfigError(file.header().path + ": architecture '" + *architecture + "' is not known" +
                          did_you_mean(*architecture, known) + "; known are " + list,
                      "general.architecture");
  }
  return *architecture;
}

namespace {

GgufPlace::How place_how(How how) {
  switch (how) {
    case How::kPlain:
      return GgufPlace::How::kPlain;
    case How::kRotaryQuery:
      return GgufPlace::How::kRotaryQuery;
    case How::kRotaryKey:
      return GgufPlace::How::kRotaryKey;
    case How::kTransposed:
      return GgufPlace::How::kTransposed;
    default:
      return GgufPlace::How::kOther;
  }
}

/// "model.layers.3.mlp.up_proj.weight" behind "model.layers.{}.": 3, and what follows. Nothing for other names.
std::optional<std::pair<std::int64_t, std::string>> in_layer(const std::string& layers, const std::string& name) {
  const std::string prefix = layers.substr(0, layers.find('{'));
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto dot = name.find('.', prefix.size());
  const auto digits = name.substr(prefix.size(), dot - prefix.size());
  if (dot == std::string::npos || digits.empty() || digits.size() > 5 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::pair(std::stoll(digits), name.substr(dot + 1));
}

}  // namespace

std::optional<GgufPlace> gguf_place(const std::string& family, const std::string& name) {
  const auto& table = family_table();
  const auto found = std::find_if(table.begin(), table.end(), [&](const Family& f) { return family == f.name; });
  TESSERA_CHECK(found != table.end(), "a known family");
  for (const char* made : {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"})
    if (name.ends_with(made)) return GgufPlace{};
  const auto layer = in_layer(found->layers, name);
  const std::string inner = layer ? layer->second : name;
  const auto dot = inner.rfind('.');
  if (dot == std::string::npos) return std::nullopt;
  for (const Name& n : layer ? found->inside : found->outside) {
    if (n.how == How::kIgnored || inner.substr(0, dot) != n.name) continue;
    const std::string block = layer ? fmt::format("blk.{}.", layer->first) : "";
    return GgufPlace{block + n.stored + inner.substr(dot), place_how(n.how), layer ? layer->first : -1};
  }
  const bool has_prefix = name.starts_with("transformer.");  // of GPT-2's own files it is left out
  return family == "gpt2" && !has_prefix && name != "lm_head.weight" ? gguf_place(family, "transformer." + name)
                                                                     : std::nullopt;
}

std::vector<GgufView> gguf_views(const io::GgufFile& file) {
  Builder builder(file);
  for (const auto& info : file.tensors()) builder.add(info);
  return std::move(builder.views);
}

}  // namespace tessera::models
