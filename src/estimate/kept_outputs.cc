#include "estimate/kept_outputs.h"

#include <variant>

#include "base/dotted_name.h"
#include "estimate/activations.h"
#include "estimate/rank_memory.h"

namespace tessera::estimate {
namespace {

using families::DecoderConfig;

/// q, k and v: norms of heads keep what they are given, and attention what it is given; turned heads of one projection
/// are copies beside v, which is a view of its output.
std::optional<std::int64_t> kept_of_heads(const DecoderConfig& c, const std::string& module, bool turns,
                                          std::int64_t outputs) {
  const auto& attention = c.names.attention + ".";
  if (c.qkv == families::QkvLayout::kSeparate) {
    const bool is_normed = has_suffix(module, attention + c.names.q) || has_suffix(module, attention + c.names.k);
    return is_normed && c.qk_norm != families::QkNorm::kNone ? std::optional(2 * outputs) : std::nullopt;
  }
  if (!has_suffix(module, attention + c.names.qkv)) return std::nullopt;
  return outputs + (turns ? (c.num_heads + c.num_kv_heads) * c.head_dim : 0);
}

/// The two branches' last projections stand for the residual stream, which a norm keeps after each of them; if both
/// branches read the same, once. A norm of a branch's result keeps that. Each expert gets a copy of its tokens, and its
/// result is kept for the gradient of its weight. That of the expert for all tokens is kept for the gradient of its
/// gate.
std::optional<std::int64_t> kept_of_branch(const DecoderConfig& c, const std::string& module) {
  const auto hidden = c.hidden_size;
  if (has_suffix(module, c.names.attention + "." + c.names.o))
    return hidden * (c.names.after_attention.empty() ? 1 : 2);
  if (has_suffix(module, "shared_expert." + c.names.down)) return hidden;
  if (module.find(".experts.") != std::string::npos) {
    constexpr std::int64_t kCopies = 2;
    if (!has_suffix(module, c.names.down)) return std::nullopt;
    return hidden * (kCopies + (has_suffix(module, "experts.0." + c.names.down) ? 1 : 0));
  }
  const auto prefix = c.names.mlp.empty() ? "" : c.names.mlp + ".";
  if (!has_suffix(module, prefix + c.names.down)) return std::nullopt;
  return hidden * ((c.residual == families::ResidualKind::kParallel ? 0 : 1) + (c.names.after_mlp.empty() ? 0 : 1));
}

bool turns_heads(const DecoderConfig& c, const std::string& unit) {
  if (c.position != families::PositionKind::kRotary) return false;
  const auto layer = static_cast<std::size_t>(std::stoll(last_part(unit)));
  return layer >= c.rotary_layers.size() || c.rotary_layers[layer];
}

void describe(const DecoderConfig& c, std::vector<ModelTensor>& tensors) {
  for (auto& t : tensors) {
    if (c.mlp == families::MlpKind::kExperts) t.experts_per_token = c.experts.per_token;
    if (!is_linear(t)) continue;
    t.in_out = c.transposed_weights;
    const auto module = module_of(t.name);
    t.kept_outputs = kept_of_branch(c, module);
    t.reads_stream = !t.kept_outputs && (is_in_attention(module) ? c.names.attention_norm : c.names.mlp_norm).empty() &&
                     c.residual == families::ResidualKind::kSequential;
    const auto& queries = c.qkv == families::QkvLayout::kSeparate ? c.names.q : c.names.qkv;
    if (has_suffix(module, c.names.attention + "." + queries)) t.heads = c.num_heads;
    if (!t.kept_outputs) t.kept_outputs = kept_of_heads(c, module, turns_heads(c, unit_of(t.name)), sides_of(t).out);
  }
}

}  // namespace

void describe_kept_outputs(const families::FamilyConfig& config, std::vector<ModelTensor>& tensors) {
  if (const auto* decoder = std::get_if<DecoderConfig>(&config)) return describe(*decoder, tensors);
  const auto* t5 = std::get_if<families::T5Config>(&config);
  const auto* bert = std::get_if<families::BertConfig>(&config);
  for (auto& t : tensors) {
    const auto module = module_of(t.name);
    t.in_encoder = t5 && module.starts_with("encoder.");
    if (!is_linear(t)) continue;
    t.reads_encoder = t5 && (module.ends_with("EncDecAttention.k") || module.ends_with("EncDecAttention.v"));
    if (bert && bert->is_deberta()) {
      const bool of_positions = last_part(module).starts_with("pos_");
      if (of_positions) t.kept_outputs = 0;  // of no token
      const bool shared = bert->deberta.shares_projections && is_in_attention(module) && !closes_branch(module);
      t.reads_positions = of_positions || shared;
    }
    if (!module.ends_with("." + (t5 ? "q" : bert->names.query))) continue;
    t.kept_heads = t5 ? t5->num_heads : bert->num_heads;
    t.kept_on_cpu = bert && (bert->positions == families::BertPositions::kRelativeKey ||
                             bert->positions == families::BertPositions::kRelativeKeyQuery);
    if (!bert || !bert->deberta.relative) continue;
    t.positions = 2 * bert->deberta.span();
    t.position_tables = bert->deberta.content_to_position + bert->deberta.position_to_content;
  }
}

}  // namespace tessera::estimate
