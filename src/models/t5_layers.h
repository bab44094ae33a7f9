#pragma once
// The parts of a T5 block. Legend: T tokens of all sequences together (no padding), D d_model, H heads, K d_kv, M
// longest query, N longest key sequence.
#include <memory>
#include <string>
#include <vector>

#include "families/blueprint.h"
#include "families/t5_config.h"
#include "nn/layers/activation.h"
#include "nn/ops/sequence_rows.h"
#include "tessera/nn/block.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/linear.h"
#include "tessera/nn/norm.h"

namespace tessera::models {

/// Keys and values of tokens already decoded, for one attention. rows: how many sequences; each has `capacity` rows in
/// keys, values.
struct T5KeyValueCache {
  at::Tensor keys, values;  // self-attention: [rows * capacity, H * K]; cross-attention: the encoder's, [T, H * K]
  std::int64_t capacity = 0;
};

/// How the tokens of a pass are laid out; the same for every block of a stack.
struct T5Layout {
  std::shared_ptr<const nn::SequenceRows> rows, encoder_rows;  // encoder_rows: cross-attention only
  at::Tensor visible, encoder_visible;                         // [T] uint8, undefined: every token is
  std::int64_t past = 0;                                       // decoded tokens in the caches, or of a prefix
  at::Tensor encoder_keys = {};  // [T] int64 (token_keys), cross-attention in training only
};

struct T5AttentionInput {
  at::Tensor hidden;          // T D
  at::Tensor encoder_hidden;  // T D, cross-attention only; undefined when the cache holds its keys
  at::Tensor position_bias;   // by distance, [H, M + N - 1], undefined: computed where the module has a table
  std::shared_ptr<const T5Layout> layout;  // lives as long as backward may recompute
  T5KeyValueCache* cache = nullptr;
  at::Tensor prefix = {};  // [2, V, H, K]: keys and values in front of each row's, decoder's self-attention only
};
struct T5AttentionOutput {
  at::Tensor hidden;         // T D
  at::Tensor position_bias;  // [H, M + N - 1] or undefined
};
void collect_tensors(T5AttentionInput& in, std::vector<at::Tensor*>& out);
void collect_tensors(T5AttentionOutput& o, std::vector<at::Tensor*>& out);

enum class T5Role { kEncoderSelf, kDecoderSelf, kCross };
using T5AttentionBlock = nn::Block<T5AttentionInput, T5AttentionOutput>;

class T5Attention : public T5AttentionBlock {
 public:
  T5Attention(const families::T5Config& config, const families::Blueprint& plan, T5Role role, at::ScalarType dtype);
  std::string class_name() const override { return config_.class_prefix + "Attention"; }

 protected:
  T5AttentionOutput forward_impl(T5AttentionInput in) override;

 private:
  at::Tensor position_bias(const T5Layout& layout);
  /// Appends this pass's keys or values to the cache and returns all of them.
  at::Tensor appended(at::Tensor& cached, std::int64_t& capacity, const at::Tensor& added,
                      const T5Layout& layout) const;

  families::T5Config config_;
  T5Role role_;
  std::shared_ptr<nn::Linear> q_, k_, v_, o_;
  std::shared_ptr<nn::Embedding> relative_attention_bias_;
};

/// Norm, attention, dropout and residual: T5LayerSelfAttention and T5LayerCrossAttention.
class T5LayerAttention : public T5AttentionBlock {
 public:
  T5LayerAttention(const families::T5Config& config, const families::Blueprint& plan, T5Role role,
                   at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  T5AttentionOutput forward_impl(T5AttentionInput in) override;

 private:
  std::string class_name_;
  std::shared_ptr<T5Attention> attention_;
  std::shared_ptr<nn::RmsNorm> layer_norm_;
  std::shared_ptr<nn::Dropout> dropout_;
};

/// T5DenseActDense (wi, wo) and T5DenseGatedActDense (wi_0, wi_1, wo).
class T5Dense : public nn::Layer {
 public:
  T5Dense(const families::T5Config& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  Activation activation_;
  std::string class_name_;
  std::shared_ptr<nn::Linear> wi_, wi_1_, wo_;
  std::shared_ptr<nn::Dropout> dropout_;
};

class T5LayerFF : public nn::Layer {
 public:
  T5LayerFF(const families::T5Config& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  std::string class_name_;
  std::shared_ptr<T5Dense> dense_;
  std::shared_ptr<nn::RmsNorm> layer_norm_;
  std::shared_ptr<nn::Dropout> dropout_;
};

/// Registers below `host` the norm that `plan` has under this name.
std::shared_ptr<nn::RmsNorm> add_norm(torch::nn::Module& host, const families::T5Config& config,
                                      const families::Blueprint& plan, const std::string& name, at::ScalarType dtype);

}  // namespace tessera::models
