#pragma once
// The parts of a decoder that is described by data. Legend: T tokens of all rows together (no padding), D hidden size.
#include <memory>
#include <string>
#include <vector>

#include "families/blueprint.h"
#include "families/decoder_config.h"
#include "models/prefix_rows.h"
#include "nn/layers/activation.h"
#include "nn/ops/grouped_linear.h"
#include "nn/ops/rotary.h"
#include "nn/ops/sequence_rows.h"
#include "tessera/nn/block.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/linear.h"
#include "tessera/nn/norm.h"

namespace tessera::models {

/// Keys and values of the tokens decoded so far, [rows * capacity, heads * head_dim]; for one layer. They have KV
/// heads, or as many as the prefix that began them.
struct KeyValueCache {
  at::Tensor keys, values;
};

/// How the tokens of a pass are laid out; the same for every layer.
struct DecoderLayout {
  std::shared_ptr<const nn::SequenceRows> rows;      // of the queries
  std::shared_ptr<const nn::SequenceRows> key_rows;  // of the keys: the same, or those of the caches
  at::Tensor visible;                                // [T] uint8, undefined: every token is
  nn::RotaryTable rotary, window_rotary;             // rotary positions only; the second of layers with a window
  at::Tensor slopes, key_position;                   // linear biases only: [H], [keys]
  at::Tensor cache_index;                            // [T] int64, the rows of the caches that this pass fills
  std::int64_t cache_rows = 0;                       // that a cache must have
  /// With a prefix of V tokens, without caches: how it and the keys lie; then key_rows, visible and key_position are of
  /// both.
  PrefixRows prefix;
  /// Of a batch in parts (ModelInput::parts), one behind another: of each, and its tokens. Then nothing else is set.
  std::vector<std::shared_ptr<const DecoderLayout>> parts = {};
  std::vector<std::int64_t> part_tokens = {};
};

struct AttentionInput {
  at::Tensor hidden;                            // T D
  std::shared_ptr<const DecoderLayout> layout;  // lives as long as backward may recompute
  KeyValueCache* cache = nullptr;
  at::Tensor prefix = {};  // [2, V, heads, head_dim]: keys and values in front of each row's; undefined: none
};
void collect_tensors(AttentionInput& in, std::vector<at::Tensor*>& out);

class DecoderAttention : public nn::Block<AttentionInput, at::Tensor> {
 public:
  DecoderAttention(const families::DecoderConfig& config, const families::Blueprint& plan, std::int64_t layer,
                   at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(AttentionInput in) override;

 private:
  struct Heads {
    at::Tensor q, k, v;  // [T, KV, G, D], [T, KV, D] twice
    /// Each query head has keys of its own from here on, where `heads` is the number of those.
    void repeat_keys(std::int64_t heads);
  };
  Heads project(const at::Tensor& hidden);
  void append(KeyValueCache& cache, Heads& heads, const DecoderLayout& layout) const;

  std::string class_name_;
  families::QkvLayout layout_;
  bool rotates_;
  std::int64_t kv_heads_, groups_, head_dim_, window_;
  double scale_, softcap_, clip_, dropout_, bias_factor_;
  bool bias_in_bfloat16_, blind_query_sees_past_, norms_all_heads_;
  std::shared_ptr<nn::Linear> q_, k_, v_, qkv_, o_;
  std::shared_ptr<nn::Layer> q_norm_, k_norm_;
};

/// Plain and gated feed-forward layers. The projections are registered in `host`.
class DecoderMlp : public nn::Layer {
 public:
  /// host: where the projections, parts of `plan`, stand in the module tree; this module when null.
  DecoderMlp(const families::DecoderConfig& config, const families::Blueprint& plan, torch::nn::Module* host,
             at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

  using Experts = std::vector<std::shared_ptr<DecoderMlp>>;
  /// Whether grouped() takes these for rows like x (nn/ops/grouped_linear.h).
  static bool can_group(const at::Tensor& x, const Experts& experts);
  /// experts[e]'s result for its rows of x, as in nn::grouped_linear().
  static at::Tensor grouped(const at::Tensor& x, const Experts& experts, const nn::ExpertRows& rows);

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  static nn::Linears all(const Experts& experts, std::shared_ptr<nn::Linear> DecoderMlp::* projection);

  std::string class_name_;
  Activation activation_;
  std::shared_ptr<nn::Linear> gate_, up_, down_;  // gate_ of kGatedFused gives both halves
  bool fused_;
};

/// What the experts' router decided, for the load-balancing loss.
struct MlpOutput {
  at::Tensor hidden;         // T D
  at::Tensor router_logits;  // T E, undefined without experts
};
void collect_tensors(MlpOutput& o, std::vector<at::Tensor*>& out);

struct DecoderLayerInput {
  at::Tensor hidden;                            // T D
  std::shared_ptr<const DecoderLayout> layout;  // lives as long as backward may recompute
  KeyValueCache* cache = nullptr;
  at::Tensor prefix = {};  // as in AttentionInput
  int place = 0;           // in the stack
};
void collect_tensors(DecoderLayerInput& in, std::vector<at::Tensor*>& out);

class MixtureOfExperts;

class DecoderLayer : public nn::Block<DecoderLayerInput, MlpOutput> {
 public:
  DecoderLayer(const families::DecoderConfig& config, const families::Blueprint& plan, std::int64_t layer,
               at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  MlpOutput forward_impl(DecoderLayerInput in) override;

 private:
  /// What a branch begins with, normed where it is, and what its result is added to.
  struct Readers {
    at::Tensor branch, residual;
  };
  Readers readers(const at::Tensor& hidden, nn::Layer* norm) const;
  MlpOutput mlp(const at::Tensor& x);
  MlpOutput part_by_part(const DecoderLayerInput& in);
  MlpOutput compute(const DecoderLayerInput& in);
  MlpOutput sequential(const DecoderLayerInput& in);
  MlpOutput parallel(const DecoderLayerInput& in);
  MlpOutput norm_after(const DecoderLayerInput& in);

  std::string class_name_;
  families::ResidualKind residual_;
  bool residual_after_norm_, one_dropout_;
  double branch_scale_;
  std::shared_ptr<DecoderAttention> attention_;
  std::shared_ptr<DecoderMlp> mlp_;
  std::shared_ptr<MixtureOfExperts> experts_;
  std::shared_ptr<nn::Layer> attention_norm_, mlp_norm_, after_attention_, after_mlp_;
  std::shared_ptr<nn::Dropout> attention_dropout_, dropout_;  // the first one may be the second
};

/// Registers below `host` the part of `plan` with this name, a norm or a projection of the family (GPT-2 stores them
/// transposed). Null: there is no such part.
std::shared_ptr<nn::Layer> add_norm(torch::nn::Module& host, const families::DecoderConfig& config,
                                    const families::Blueprint& plan, const std::string& name, at::ScalarType dtype);
std::shared_ptr<nn::Linear> add_projection(torch::nn::Module& host, const families::DecoderConfig& config,
                                           const families::Blueprint& plan, const std::string& name,
                                           at::ScalarType dtype);

}  // namespace tessera::models
