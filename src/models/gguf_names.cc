#include "models/gguf_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "base/nearest.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

using How = GgufArrangement;

struct Name {
  const char* stored;  // without .weight and .bias
  const char* name;    // "{}" stands for the expert; empty: made of the configuration
  How how = How::kPlain;
};

/// Blocks one after the other.
struct Stack {
  const char* stored;  // "blk.", then the block's number
  const char* layers;  // what "blk.N." becomes, "{}" for N
  std::vector<Name> names;
};

struct Family {
  const char* name;
  const char* architecture;
  const char* model_type;
  std::vector<Name> outside;
  std::vector<Stack> stacks;
  std::vector<const char*> unread = {};  // modules that readers do without
};

std::vector<Name> join(std::vector<Name> a, const std::vector<Name>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<Name> kLlamaOutside = {{"token_embd", "model.embed_tokens"},
                                         {"output_norm", "model.norm"},
                                         {"output", "lm_head"},
                                         {"rope_freqs", ""},
                                         {"rope_factors_long", ""},
                                         {"rope_factors_short", ""}};
const std::vector<Name> kSharedAttention = {
    {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"}, {"attn_rot_embd", ""}};
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
const std::vector<Name> kQwenExperts = {{"ffn_gate_inp", "mlp.gate"},
                                        {"ffn_gate_exps", "mlp.experts.{}.gate_proj", How::kExperts},
                                        {"ffn_down_exps", "mlp.experts.{}.down_proj", How::kExperts},
                                        {"ffn_up_exps", "mlp.experts.{}.up_proj", How::kExperts}};

const std::vector<Name> kFusedMlp = {{"ffn_up", "mlp.gate_up_proj"}, {"ffn_down", "mlp.down_proj"}};

const std::vector<Name> kT5Attention = {
    {"attn_norm", "0.layer_norm"},   {"attn_q", "0.SelfAttention.q"},
    {"attn_k", "0.SelfAttention.k"}, {"attn_v", "0.SelfAttention.v"},
    {"attn_o", "0.SelfAttention.o"}, {"attn_rel_b", "0.SelfAttention.relative_attention_bias"}};
const std::vector<Name> kT5CrossAttention = {
    {"cross_attn_norm", "1.layer_norm"},     {"cross_attn_q", "1.EncDecAttention.q"},
    {"cross_attn_k", "1.EncDecAttention.k"}, {"cross_attn_v", "1.EncDecAttention.v"},
    {"cross_attn_o", "1.EncDecAttention.o"}, {"cross_attn_rel_b", ""}};  // some files have one; no model reads it
// Without "bert." and "roberta.", which files of an encoder alone leave out.
const std::vector<Name> kBertOutside = {{"token_embd", "embeddings.word_embeddings"},
                                        {"token_types", "embeddings.token_type_embeddings"},
                                        {"position_embd", "embeddings.position_embeddings"},
                                        {"token_embd_norm", "embeddings.LayerNorm"}};
const std::vector<Name> kBertLayer = {
    {"attn_q", "attention.self.query"}, {"attn_k", "attention.self.key"},
    {"attn_v", "attention.self.value"}, {"attn_output", "attention.output.dense"},
    {"ffn_up", "intermediate.dense"},   {"attn_output_norm", "attention.output.LayerNorm"},
    {"ffn_down", "output.dense"},       {"layer_output_norm", "output.LayerNorm"}};
const std::vector<Family>& family_table() {
  constexpr auto kLayers = "model.layers.{}.";
  constexpr auto kShifted = How::kPlusOne;
  const std::vector<Name> gemma_outside = {
      {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm", kShifted}, {"output", "lm_head"}};
  const std::vector<Name> gemma_norms = {{"attn_norm", "input_layernorm", kShifted},
                                         {"post_attention_norm", "post_attention_layernorm", kShifted},
                                         {"ffn_norm", "pre_feedforward_layernorm", kShifted},
                                         {"post_ffw_norm", "post_feedforward_layernorm", kShifted}};
  const std::vector<Name> gemma_head_norms = {{"attn_q_norm", "self_attn.q_norm", kShifted},
                                              {"attn_k_norm", "self_attn.k_norm", kShifted}};
  const std::vector<Name> olmo_norms = {{"post_attention_norm", "post_attention_layernorm"},
                                        {"post_ffw_norm", "post_feedforward_layernorm"}};
  const std::vector<Name> plain_mlp = {{"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"}};
  const std::vector<Name> t5_outside = {{"token_embd", "shared"},
                                        {"token_embd", "encoder.embed_tokens"},  // the same table
                                        {"token_embd", "decoder.embed_tokens"},
                                        {"enc.output_norm", "encoder.final_layer_norm"},
                                        {"dec.output_norm", "decoder.final_layer_norm"},
                                        {"output", "lm_head"}};
  const std::vector<Name> gpt_outside = {{"token_embd", "transformer.wte"},
                                         {"position_embd", "transformer.wpe"},
                                         {"output_norm", "transformer.ln_f"},
                                         {"output", "lm_head"}};
  const auto gpt_blocks = [](How matrices) {
    return std::vector<Name>{{"attn_norm", "ln_1"},
                             {"ffn_norm", "ln_2"},
                             {"attn_qkv", "attn.c_attn", matrices},
                             {"attn_output", "attn.c_proj", matrices},
                             {"ffn_up", "mlp.c_fc", matrices},
                             {"ffn_down", "mlp.c_proj", matrices}};
  };
  const auto heads_of_bloom = How::kInterleaved;
  const auto blocks = [](const char* layers, std::vector<Name> names) {
    return std::vector<Stack>{{"blk.", layers, std::move(names)}};
  };
  const auto of_bert = blocks("encoder.layer.{}.", kBertLayer);
  const auto of_llama = blocks(kLayers, join(join(kTwoNorms, kRotatedAttention), kGatedMlp));
  static const std::vector<Family> table = {
      {"llama", "llama", "llama", kLlamaOutside, of_llama},
      {"mistral", "llama", "mistral", kLlamaOutside, of_llama},
      {"mixtral", "llama", "mixtral", kLlamaOutside,
       blocks(kLayers, join(join(kTwoNorms, kRotatedAttention), kExperts))},
      {"qwen2", "qwen2", "qwen2", kLlamaOutside, blocks(kLayers, join(join(kTwoNorms, kPlainAttention), kGatedMlp))},
      {"qwen3", "qwen3", "qwen3", kLlamaOutside,
       blocks(kLayers, join(join(join(kTwoNorms, kPlainAttention), kHeadNorms), kGatedMlp))},
      {"gemma", "gemma", "gemma", gemma_outside,
       blocks(kLayers, join(join({{"attn_norm", "input_layernorm", kShifted},
                                  {"ffn_norm", "post_attention_layernorm", kShifted}},
                                 kPlainAttention),
                            kGatedMlp))},
      {"gemma2", "gemma2", "gemma2", gemma_outside,
       blocks(kLayers, join(join(gemma_norms, kPlainAttention), kGatedMlp))},
      {"gemma3", "gemma3", "gemma3_text", gemma_outside,
       blocks(kLayers, join(join(join(gemma_norms, gemma_head_norms), kPlainAttention), kGatedMlp))},
      {"granite", "granite", "granite", kLlamaOutside, of_llama},
      {"smollm3", "smollm3", "smollm3", kLlamaOutside, of_llama},
      {"olmo2", "olmo2", "olmo2", kLlamaOutside,
       blocks(kLayers, join(join(join(olmo_norms, kPlainAttention), kHeadNorms), kGatedMlp))},
      {"starcoder2", "starcoder2", "starcoder2", kLlamaOutside,
       blocks(kLayers, join(join(kTwoNorms, kPlainAttention), plain_mlp))},
      {"qwen3moe", "qwen3moe", "qwen3_moe", kLlamaOutside,
       blocks(kLayers, join(join(join(kTwoNorms, kPlainAttention), kHeadNorms), kQwenExperts))},
      {"phi3", "phi3", "phi3", kLlamaOutside,
       blocks(kLayers, join(join(kTwoNorms, {{"attn_qkv", "self_attn.qkv_proj"}, {"attn_output", "self_attn.o_proj"}}),
                            kFusedMlp))},
      {"phi2",
       "phi2",
       "phi",
       {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.final_layernorm"}, {"output", "lm_head"}},
       blocks(kLayers, {{"attn_norm", "input_layernorm"},
                        {"attn_q", "self_attn.q_proj"},
                        {"attn_k", "self_attn.k_proj"},
                        {"attn_v", "self_attn.v_proj"},
                        {"attn_output", "self_attn.dense"},
                        {"ffn_up", "mlp.fc1"},
                        {"ffn_down", "mlp.fc2"}})},
      {"stablelm", "stablelm", "stablelm", kLlamaOutside,
       blocks(kLayers, join(join(kTwoNorms, kPlainAttention), kGatedMlp))},
      {"olmo", "olmo", "olmo", kLlamaOutside, blocks(kLayers, join(kRotatedAttention, kGatedMlp))},
      {"olmoe", "olmoe", "olmoe", kLlamaOutside,
       blocks(kLayers, join(join(join(kTwoNorms, kPlainAttention), kHeadNorms), kQwenExperts))},
      {"chatglm", "chatglm", "glm", kLlamaOutside, blocks(kLayers, join(join(kTwoNorms, kPlainAttention), kFusedMlp))},
      {"glm4", "glm4", "glm4", kLlamaOutside,
       blocks(kLayers, join(join(join(kTwoNorms, {{"post_attention_norm", "post_self_attn_layernorm"},
                                                  {"post_ffw_norm", "post_mlp_layernorm"}}),
                                 kPlainAttention),
                            kFusedMlp))},
      {"gpt2", "gpt2", "gpt2", gpt_outside, blocks("transformer.h.{}.", gpt_blocks(How::kTransposed))},
      {"starcoder", "starcoder", "gpt_bigcode", gpt_outside, blocks("transformer.h.{}.", gpt_blocks(How::kPlain))},
      {"gptneox",
       "gptneox",
       "gpt_neox",
       {{"token_embd", "gpt_neox.embed_in"}, {"output_norm", "gpt_neox.final_layer_norm"}, {"output", "embed_out"}},
       blocks("gpt_neox.layers.{}.", join(kTwoNorms, {{"attn_qkv", "attention.query_key_value", heads_of_bloom},
                                                      {"attn_output", "attention.dense"},
                                                      {"ffn_up", "mlp.dense_h_to_4h"},
                                                      {"ffn_down", "mlp.dense_4h_to_h"}}))},
      {"bloom",
       "bloom",
       "bloom",
       {{"token_embd", "transformer.word_embeddings"},
        {"token_embd_norm", "transformer.word_embeddings_layernorm"},
        {"output_norm", "transformer.ln_f"},
        {"output", "lm_head"}},
       blocks("transformer.h.{}.", join(kTwoNorms, {{"attn_qkv", "self_attention.query_key_value", heads_of_bloom},
                                                    {"attn_output", "self_attention.dense"},
                                                    {"ffn_up", "mlp.dense_h_to_4h"},
                                                    {"ffn_down", "mlp.dense_4h_to_h"}}))},
      {"falcon",
       "falcon",
       "falcon",
       {{"token_embd", "transformer.word_embeddings"}, {"output_norm", "transformer.ln_f"}, {"output", "lm_head"}},
       blocks("transformer.h.{}.", {{"attn_norm", "input_layernorm"},
                                    {"attn_qkv", "self_attention.query_key_value", How::kGrouped},
                                    {"attn_output", "self_attention.dense"},
                                    {"ffn_up", "mlp.dense_h_to_4h"},
                                    {"ffn_down", "mlp.dense_4h_to_h"}})},
      {"falcon with two norms",
       "falcon",
       "falcon",
       {{"token_embd", "transformer.word_embeddings"}, {"output_norm", "transformer.ln_f"}, {"output", "lm_head"}},
       blocks("transformer.h.{}.", {{"attn_norm", "ln_mlp"},
                                    {"attn_norm_2", "ln_attn"},
                                    {"attn_qkv", "self_attention.query_key_value", How::kGrouped},
                                    {"attn_output", "self_attention.dense"},
                                    {"ffn_up", "mlp.dense_h_to_4h"},
                                    {"ffn_down", "mlp.dense_4h_to_h"}})},
      {"bert", "bert", "bert", kBertOutside, of_bert, {"cls", "pooler"}},
      {"bert with a classifier",
       "bert",
       "bert",
       join(kBertOutside, {{"cls", "pooler.dense"}, {"cls.output", "classifier"}}),
       of_bert,
       {"cls"}},
      {"roberta", "bert", "roberta", kBertOutside, of_bert, {"lm_head", "pooler"}},
      {"roberta with a classifier",
       "bert",
       "roberta",
       join(kBertOutside, {{"cls", "classifier.dense"}, {"cls.output", "classifier.out_proj"}}),
       of_bert,
       {"lm_head", "pooler"}},
      {"t5",
       "t5",
       "t5",
       t5_outside,
       {{"enc.blk.", "encoder.block.{}.layer.",
         join(kT5Attention,
              {{"ffn_norm", "1.layer_norm"}, {"ffn_up", "1.DenseReluDense.wi"}, {"ffn_down", "1.DenseReluDense.wo"}})},
        {"dec.blk.", "decoder.block.{}.layer.",
         join(
             join(kT5Attention, kT5CrossAttention),
             {{"ffn_norm", "2.layer_norm"}, {"ffn_up", "2.DenseReluDense.wi"}, {"ffn_down", "2.DenseReluDense.wo"}})}}},
      {"t5 with gates",
       "t5",
       "t5",
       t5_outside,
       {{"enc.blk.", "encoder.block.{}.layer.",
         join(kT5Attention, {{"ffn_norm", "1.layer_norm"},
                             {"ffn_gate", "1.DenseReluDense.wi_0"},
                             {"ffn_up", "1.DenseReluDense.wi_1"},
                             {"ffn_down", "1.DenseReluDense.wo"}})},
        {"dec.blk.", "decoder.block.{}.layer.",
         join(join(kT5Attention, kT5CrossAttention), {{"ffn_norm", "2.layer_norm"},
                                                      {"ffn_gate", "2.DenseReluDense.wi_0"},
                                                      {"ffn_up", "2.DenseReluDense.wi_1"},
                                                      {"ffn_down", "2.DenseReluDense.wo"}})}}},
  };
  return table;
}

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const auto& f : family_table())
    if (std::find(names.begin(), names.end(), f.architecture) == names.end()) names.emplace_back(f.architecture);
  return names;
}

const Family& family_named(const std::string& name) {
  for (const auto& f : family_table())
    if (name == f.name) return f;
  throw std::logic_error("no GGUF family " + name);
}

/// Of a layer or an expert: up to five digits.
std::optional<std::int64_t> number_in(const std::string& digits) {
  if (digits.empty() || digits.size() > 5 || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(digits);
}

/// "blk.3.attn_q.weight" in its parts.
struct Parts {
  const Stack* stack = nullptr;  // null: outside of the blocks
  std::int64_t block = -1;
  std::string plain, suffix;
};

/// "3" and ".attn_q.weight" of a name that begins so and goes on with a number and a dot. Nothing for other names.
std::optional<std::pair<std::int64_t, std::string>> numbered(const std::string& prefix, const std::string& name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto dot = name.find('.', prefix.size());
  const auto number = number_in(name.substr(prefix.size(), dot - prefix.size()));
  if (dot == std::string::npos || !number) return std::nullopt;
  return std::pair(*number, name.substr(dot + 1));
}

Parts split(const std::vector<Stack>& stacks, const std::string& name) {
  Parts parts;
  auto rest = name;
  for (const Stack& stack : stacks) {
    const auto inner = numbered(stack.stored, name);
    if (!inner) continue;
    parts.stack = &stack;
    std::tie(parts.block, rest) = *inner;
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
  explicit Builder(const io::GgufFile& file) : heads_(heads_of(file)), family_(family_named(gguf_family(file))) {}

  void add(const io::TensorInfo& info) {
    const auto parts = split(family_.stacks, info.name);
    const auto& names = parts.stack ? parts.stack->names : family_.outside;
    const auto found = std::find_if(names.begin(), names.end(), [&](const Name& n) { return parts.plain == n.stored; });
    if (found == names.end()) fail(info, fmt::format("not a tensor of architecture '{}'", family_.name));
    if (*found->name == 0) return;
    const auto prefix = parts.stack ? fmt::format(fmt::runtime(parts.stack->layers), parts.block) : "";
    if (found->how == How::kExperts) return add_experts(info, prefix, found->name, parts.suffix);
    GgufView view{prefix + found->name + parts.suffix, info.name, info.shape};
    arrange(view, found->how, info);
    views.push_back(std::move(view));
  }

  std::vector<GgufView> views;

 private:
  [[noreturn]] void fail(const io::TensorInfo& info, const std::string& message) const {
    throw DataError(fmt::format("{}: tensor '{}': {}", info.file, info.name, message), info.file);
  }

  /// name: with {} for the expert's number. What comes of the file is no pattern.
  void add_experts(const io::TensorInfo& info, const std::string& prefix, const char* name, const std::string& suffix) {
    constexpr std::int64_t kMostExperts = 1 << 16;
    if (info.shape.size() != 3 || info.shape[0] > kMostExperts)
      fail(info, fmt::format("expected [experts, rows, columns], with at most {} experts", kMostExperts));
    for (std::int64_t e = 0; e < info.shape[0]; ++e) {
      views.push_back({prefix + fmt::format(fmt::runtime(name), e) + suffix,
                       info.name,
                       {info.shape[1], info.shape[2]},
                       How::kExperts,
                       expert_rows(info.shape[1], e)});
    }
  }

  void arrange(GgufView& view, How how, const io::TensorInfo& info) const {
    if (how == How::kTransposed && view.shape.size() != 2) return;  // a bias
    view.arrangement = how;
    if (how == How::kTransposed) std::swap(view.shape[0], view.shape[1]);
    if (!moves_rows(how)) return;
    const auto rows = view.shape.empty() ? 0 : view.shape[0];
    view.stored_row = moved_rows(how, rows, heads_);
    if (!view.stored_row)
      fail(info, fmt::format("{} rows do not belong to {} heads and {} key/value heads", rows, heads_.heads,
                             heads_.key_value_heads));
  }

  GgufHeads heads_;
  const Family& family_;
};

}  // namespace

std::string gguf_architecture(const std::string& family) {
  return family_named(family).architecture;
}

std::string gguf_model_type(const std::string& family) {
  return family_named(family).model_type;
}

std::vector<std::string> gguf_model_types() {
  std::vector<std::string> names;
  for (const auto& f : family_table())
    if (std::string(f.name).find(' ') == std::string::npos) names.emplace_back(f.model_type);
  return names;
}

std::string gguf_family(const families::T5Config& config) {
  return config.gated ? "t5 with gates" : "t5";
}

std::string gguf_family(const families::BertConfig& config) {
  const bool classifies = config.head == families::BertHead::kSequenceClassification;
  if (!config.roberta() && config.family != families::BertFamily::kBert) return "";
  return std::string(config.roberta() ? "roberta" : "bert") + (classifies ? " with a classifier" : "");
}

std::string gguf_family(const families::DecoderConfig& config) {
  if (config.model_type == "falcon" && config.names.mlp_norm == "ln_mlp") return "falcon with two norms";
  for (const auto& f : family_table())
    if (config.model_type == f.model_type) return f.name;
  return "";
}

std::string gguf_family(const io::GgufFile& file) {
  const auto architecture = file.header().text("general.architecture");
  if (!architecture)
    throw DataError(file.header().path + ": key 'general.architecture' is missing", file.header().path);
  const bool experts = file.header().integer(*architecture + ".expert_count").value_or(0) > 0;
  if (*architecture == "llama" && experts) return "mixtral";
  if (*architecture == "falcon" && file.find("blk.0.attn_norm_2.weight")) return "falcon with two norms";
  if (*architecture == "t5" && file.find("enc.blk.0.ffn_gate.weight")) return "t5 with gates";
  if (*architecture == "bert" && file.find("cls.output.weight")) return "bert with a classifier";
  auto known = architectures();
  for (const char* said_by_some : {"mistral", "mixtral"}) known.emplace_back(said_by_some);
  if (std::find(known.begin(), known.end(), *architecture) != known.end()) return *architecture;
  throw ConfigError(file.header().path + ": architecture '" + *architecture + "' is not known" +
                        did_you_mean(*architecture, known) + fmt::format("; known are {}", fmt::join(known, ", ")),
                    "general.architecture");
}

namespace {

/// "model.layers.{}.mlp": "model.layers."
std::string before_number(const char* pattern) {
  const std::string text = pattern;
  return text.substr(0, text.find('{'));
}

/// The expert's number where `name` is what `pattern` ("mlp.experts.{}.up_proj") says of one.
std::optional<std::int64_t> expert_in(const std::string& pattern, const std::string& name) {
  const auto at = pattern.find("{}");
  const std::string before = pattern.substr(0, at), after = pattern.substr(at + 2);
  if (!name.starts_with(before) || !name.ends_with(after) || name.size() <= before.size() + after.size())
    return std::nullopt;
  return number_in(name.substr(before.size(), name.size() - before.size() - after.size()));
}

}  // namespace

std::optional<GgufPlace> gguf_place(const std::string& family, const std::string& name) {
  const Family& f = family_named(family);
  for (const char* made : {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "embeddings.position_ids"})
    if (name.ends_with(made)) return GgufPlace{};
  if (std::string(f.architecture) == "bert")
    for (const std::string base : {"bert.", "roberta."})
      if (name.starts_with(base)) return gguf_place(family, name.substr(base.size()));
  for (const std::string module : f.unread)
    if (name.starts_with(module + ".")) return GgufPlace{};
  const Stack* stack = nullptr;
  std::int64_t layer = -1;
  std::string inner = name;
  for (const Stack& one : f.stacks) {
    const std::string pattern = one.layers, after = pattern.substr(pattern.find('}') + 2);
    const auto found = numbered(before_number(one.layers), name);
    if (!found || !found->second.starts_with(after)) continue;
    stack = &one;
    layer = found->first;
    inner = found->second.substr(after.size());
  }
  const auto dot = inner.rfind('.');
  if (dot == std::string::npos) return std::nullopt;
  const std::string module = inner.substr(0, dot);
  for (const Name& n : stack ? stack->names : f.outside) {
    const auto expert = n.how == How::kExperts ? expert_in(n.name, module) : std::nullopt;
    if (!expert && module != n.name) continue;
    const std::string block = stack ? fmt::format("{}{}.", stack->stored, layer) : "";
    const std::string end = inner.substr(dot);  // LayerNorm.gamma: of the first BERTs
    const std::string suffix = end == ".gamma" ? ".weight" : end == ".beta" ? ".bias" : end;
    return GgufPlace{block + n.stored + suffix, n.how, expert.value_or(-1)};
  }
  // Files of a body alone leave the first part out: LlamaModel's, GPT-2's and BLOOM's own.
  const std::string layers = f.stacks[0].layers, base = layers.substr(0, layers.find('.') + 1);
  return !name.starts_with(base) && name != "lm_head.weight" ? gguf_place(family, base + name) : std::nullopt;
}

std::vector<GgufView> gguf_views(const io::GgufFile& file) {
  Builder builder(file);
  for (const auto& info : file.tensors()) builder.add(info);
  return std::move(builder.views);
}

}  // namespace tessera::models
