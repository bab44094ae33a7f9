#pragma once
// Everything in which decoder families differ, as data. A family's file fills it in from config.json; the skeleton
// (decoder_*.cc) builds any of them.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/layer_kinds.h"
#include "families/classifier.h"
#include "families/rotary_settings.h"

namespace tessera::families {

enum class NormKind {
  kRms,        // w * x / rms(x)
  kRmsOffset,  // (1 + w) * x / rms(x)
  kLayer       // w * (x - mean) / std + b
};
enum class PositionKind { kRotary, kLearned, kLinearBias };
enum class ResidualKind {
  kSequential,  // x += attention(norm(x)); x += mlp(norm(x))
  kParallel,    // x += attention(norm(x)) + mlp(norm(x))
  kNormAfter    // x = norm(x + attention(x)); x = norm(x + mlp(x))
};
enum class QkvLayout {
  kSeparate,      // three projections
  kConcatenated,  // one: all of q, then k, then v
  kGrouped        // one: for each key/value head its queries, its key, its value
};
enum class MlpKind { kPlain, kGated, kGatedFused, kExperts };
enum class QkNorm {
  kNone,
  kHead,     // each head by itself
  kOwnHead,  // the same, with a norm of its own for every head, which has no bias
  kAll       // all heads of a token together
};

/// Names in the module tree, which are the names in weight files. Empty: the family has no such module; for `mlp`: its
/// projections stand in the layer itself.
struct DecoderNames {
  std::string base = "model";  // may be a path, "model.decoder"
  std::string embedding = "embed_tokens", positions, embedding_norm, project_in, project_out;
  std::string layers = "layers", final_norm = "norm", head = "lm_head";
  std::string attention = "self_attn";  // may be a path, "attn.attention"
  std::string q = "q_proj", k = "k_proj", v = "v_proj", qkv, o = "o_proj";
  std::string q_norm = "q_norm", k_norm = "k_norm";
  std::string mlp = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";  // sequential: may be empty
  std::string after_attention, after_mlp;  // norms of the branches' results
  bool operator==(const DecoderNames&) const = default;
};

/// Class names as upstream prints them; wrap policies go by them.
struct DecoderClasses {
  std::string causal, base, layer, attention, mlp, norm, experts = {};
  bool operator==(const DecoderClasses&) const = default;
};

struct ExpertSettings {
  std::int64_t count = 0, per_token = 0;
  std::int64_t intermediate_size = 0;  // of each
  std::vector<bool> layers;            // which layers have experts (the others are kGated); empty: all
  std::int64_t shared_size = 0;        // intermediate size of the expert that all tokens go to; 0: there is none
  double auxiliary_coefficient = 0;    // of the load-balancing loss
  bool auxiliary_loss = false;
  bool normalised = true;  // the chosen ones' probabilities add up to 1
  bool operator==(const ExpertSettings&) const = default;
};

struct DecoderConfig {
  std::string model_type;
  DecoderNames names;
  DecoderClasses classes;

  std::int64_t vocab_size = 0, hidden_size = 0, embedding_size = 0, num_layers = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, intermediate_size = 0;

  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  ResidualKind residual = ResidualKind::kSequential;
  bool residual_after_norm = false;  // the residual is the normed input (BLOOM's option)
  bool final_norm = true;
  bool norm_affine = true;            // layer norms have weight and bias
  bool one_dropout_for_both = false;  // parallel residual: one mask for the sum of the branches
  bool mlp_alone_drops = false;       // residual_dropout is of the MLP's branch alone

  PositionKind position = PositionKind::kRotary;
  RotarySettings rotary;
  std::optional<RotarySettings> window_rotary;  // of layers with a window; unset: the same
  /// Generating: rows that grow beyond so many tokens are read again, for what follows turns with other factors; 0:
  /// none.
  std::int64_t reread_beyond = 0;
  std::vector<bool> rotary_layers;                      // empty: every layer turns
  std::int64_t position_rows = 0, position_offset = 0;  // of a learned table
  bool positions_count_visible = false;                 // positions come from the mask: cumsum(mask) - 1
  double linear_bias_factor = 1.0;                      // Falcon scales it, as q k^T
  bool linear_bias_in_bfloat16 = false;

  QkvLayout qkv = QkvLayout::kSeparate;
  bool prefix_of_query_heads = false;  // a prefix has keys and values for each query head, not for each of keys
  bool qkv_bias = false, o_bias = false;
  double clip_qkv = 0;  // queries, keys and values are cut off at -clip_qkv and clip_qkv; 0: they are not
  QkNorm qk_norm = QkNorm::kNone;
  std::vector<double> attention_scale;         // for each layer
  std::vector<std::int64_t> attention_window;  // for each layer; 0: none
  double attention_softcap = 0;
  bool blind_query_sees_past = false;  // a query whose keys are all masked: evenly over the past, not over everything

  MlpKind mlp = MlpKind::kGated;
  Activation activation = Activation::kSilu;
  bool mlp_bias = false;
  ExpertSettings experts;

  bool transposed_weights = false;  // GPT-2's Conv1D: [in, out]
  double embedding_scale = 1.0;
  bool embedding_scale_in_dtype = false;  // the factor is rounded to it first
  bool embedding_scales_itself = false;   // inside the table's own module: noise on what that gives is not scaled
  double branch_scale = 1.0;              // of what attention and MLP add (sequential residuals)
  bool tied = false, head_bias = false;
  std::optional<ClassifierConfig> classifier;  // set: a head "score" without bias instead of that of a language model
  double logit_softcap = 0, logit_scale = 1.0;
  double embedding_dropout = 0, residual_dropout = 0, attention_dropout = 0;

  std::int64_t padding_idx = -1;  // row of the token table without a gradient through the lookup; -1: none
  std::int64_t pad_token_id = -1, bos_token_id = 1, eos_token_id = 2;
  std::optional<std::int64_t> given_pad_token_id;  // unset: neither config.json nor the family has one
  std::int64_t max_positions = 0;
  double initializer_range = 0.02;
  double output_initializer_range = 0;  // of the projections that end a branch; 0: the same
  std::string stored_dtype = "F32";     // as safetensors spells it
  std::vector<std::string> lora_targets;
  bool operator==(const DecoderConfig&) const = default;

  bool has_experts(std::int64_t layer) const {
    return mlp == MlpKind::kExperts && (experts.layers.empty() || experts.layers[static_cast<std::size_t>(layer)]);
  }
};

/// The class of the family with a classification head: "LlamaForSequenceClassification".
std::string classifier_class(const DecoderConfig& config);

}  // namespace tessera::families
