// The modules of a decoder that is described by data.
#include "families/blueprint.h"
#include "families/decoder_config.h"

namespace tessera::families {
namespace {

Blueprint projection(const DecoderConfig& c, const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
  return (c.transposed_weights ? transposed_linear : linear)(name, in, out, bias_if(bias));
}

Blueprint norm_of(const DecoderConfig& c, const std::string& name, std::int64_t size) {
  const bool layer_norm = c.norm == NormKind::kLayer;
  return norm(name, size, !layer_norm ? NormForm::kWeight : c.norm_affine ? NormForm::kWeightAndBias : NormForm::kBare);
}

Blueprint norm_of_heads(const DecoderConfig& c, const std::string& name, std::int64_t heads) {
  if (c.qk_norm != QkNorm::kOwnHead)
    return norm_of(c, name, c.qk_norm == QkNorm::kAll ? heads * c.head_dim : c.head_dim);
  const auto one = [&](std::int64_t) { return norm("", c.head_dim, NormForm::kWeight); };
  return {.name = name, .parts = {list("norms", heads, one)}};
}

Blueprint attention(const DecoderConfig& c) {
  Blueprint out{.name = c.names.attention};
  const std::int64_t queries = c.num_heads * c.head_dim, keys = c.num_kv_heads * c.head_dim;
  if (c.qkv == QkvLayout::kSeparate) {
    out.parts = {projection(c, c.names.q, c.hidden_size, queries, c.qkv_bias),
                 projection(c, c.names.k, c.hidden_size, keys, c.qkv_bias),
                 projection(c, c.names.v, c.hidden_size, keys, c.qkv_bias)};
  } else {
    out.parts = {projection(c, c.names.qkv, c.hidden_size, queries + 2 * keys, c.qkv_bias)};
  }
  out.parts.push_back(projection(c, c.names.o, queries, c.hidden_size, c.o_bias));
  if (c.qk_norm != QkNorm::kNone) {
    out.parts.push_back(norm_of_heads(c, c.names.q_norm, c.num_heads));
    out.parts.push_back(norm_of_heads(c, c.names.k_norm, c.num_kv_heads));
  }
  return out;
}

void add_mlp(const DecoderConfig& c, std::int64_t inner, std::vector<Blueprint>& parts) {
  const bool fused = c.mlp == MlpKind::kGatedFused;
  if (c.mlp != MlpKind::kPlain)
    parts.push_back(projection(c, c.names.gate, c.hidden_size, fused ? 2 * inner : inner, c.mlp_bias));
  if (!fused) parts.push_back(projection(c, c.names.up, c.hidden_size, inner, c.mlp_bias));
  parts.push_back(projection(c, c.names.down, inner, c.hidden_size, c.mlp_bias));
}

Blueprint experts(const DecoderConfig& c) {
  const auto expert = [&](std::int64_t) {
    Blueprint one;
    add_mlp(c, c.experts.intermediate_size, one.parts);
    return one;
  };
  Blueprint out{.name = c.names.mlp,
                .parts = {projection(c, "gate", c.hidden_size, c.experts.count, false),
                          list("experts", c.experts.count, expert)}};
  if (c.experts.shared_size > 0) {
    add_mlp(c, c.experts.shared_size, out.parts.emplace_back(Blueprint{.name = "shared_expert"}).parts);
    out.parts.push_back(projection(c, "shared_expert_gate", c.hidden_size, 1, false));
  }
  return out;
}

Blueprint layer(const DecoderConfig& c, std::int64_t place) {
  Blueprint out{.parts = {attention(c)}};
  if (c.has_experts(place)) {
    out.parts.push_back(experts(c));
  } else if (c.names.mlp.empty()) {
    add_mlp(c, c.intermediate_size, out.parts);
  } else {
    add_mlp(c, c.intermediate_size, out.parts.emplace_back(Blueprint{.name = c.names.mlp}).parts);
  }
  for (const auto& name : {c.names.attention_norm, c.names.after_attention, c.names.mlp_norm, c.names.after_mlp}) {
    if (!name.empty()) out.parts.push_back(norm_of(c, name, c.hidden_size));
  }
  return out;
}

Blueprint base(const DecoderConfig& c) {
  Blueprint out{.name = c.names.base, .parts = {embedding(c.names.embedding, c.vocab_size, c.embedding_size)}};
  if (c.position == PositionKind::kLearned)
    out.parts.push_back(embedding(c.names.positions, c.position_rows + c.position_offset, c.hidden_size));
  if (!c.names.embedding_norm.empty()) out.parts.push_back(norm_of(c, c.names.embedding_norm, c.hidden_size));
  if (!c.names.project_in.empty()) {
    out.parts.push_back(linear(c.names.project_in, c.embedding_size, c.hidden_size, Bias::kNone));
    out.parts.push_back(linear(c.names.project_out, c.hidden_size, c.embedding_size, Bias::kNone));
  }
  out.parts.push_back(list(c.names.layers, c.num_layers, [&](std::int64_t place) { return layer(c, place); }));
  if (c.final_norm) out.parts.push_back(norm_of(c, c.names.final_norm, c.hidden_size));
  return out;
}

}  // namespace

Blueprint blueprint(const DecoderConfig& c) {
  Blueprint out{.parts = {base(c)}};
  if (c.classifier) {
    out.parts.push_back(linear("score", c.embedding_size, c.classifier->num_labels, Bias::kNone));
  } else if (!c.tied) {
    out.parts.push_back(linear(c.names.head, c.embedding_size, c.vocab_size, bias_if(c.head_bias)));
  } else if (c.head_bias) {
    out.parts.push_back({.name = c.names.head, .parameters = {{"bias", {c.vocab_size}}}});
  }
  return out;
}

}  // namespace tessera::families
