#pragma once
// The parts of a BERT encoder (Devlin et al. 2019), post-norm. Legend: T visible tokens of all rows together, D
// hidden_size, E embedding_size, H heads.
#include <memory>
#include <string>
#include <vector>

#include "families/bert_config.h"
#include "families/blueprint.h"
#include "models/prefix_rows.h"
#include "nn/layers/activation.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/sequence_rows.h"
#include "tessera/nn/block.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/linear.h"
#include "tessera/nn/norm.h"

namespace tessera::nn {
struct AttentionOptions;
}

namespace tessera::models {

/// How the tokens of a pass are laid out; the same for every layer.
struct BertLayout {
  std::shared_ptr<const nn::SequenceRows> rows;  // of the queries
  at::Tensor visible;                            // of the keys, uint8, undefined: every token is
  PrefixRows prefix;                             // the keys' rows where there is one
  /// DeBERTa: the rows of distances in the positions that layers get, and the keys of these positions' dropout.
  std::shared_ptr<const std::vector<std::int64_t>> distance_rows = {};
  at::Tensor position_keys = {};
};

/// Of every token with the visible ones of its row.
nn::AttentionOptions attention_options(const BertLayout& layout, double scale, double dropout);

/// The loss that a masked-LM head makes without storing its logits.
struct MaskedLmLoss {
  at::Tensor labels;  // [rows]
  nn::CrossEntropyOptions options;
  at::Tensor predictions = {};  // [rows], where options ask for them
  /// weight: [vocab_size, E].
  at::Tensor of(const at::Tensor& head_input, const nn::Weight& weight) const {
    return nn::linear_cross_entropy(head_input, weight, labels, options);
  }
};

struct BertEmbeddingsInput {
  at::Tensor ids, positions, types;  // T int64
  at::Tensor visible;                // T uint8: embeddings of other tokens become 0 (DeBERTa); undefined: none do
  /// [rows, E]: instead of embedding, the product with the word table (the tied masked-LM head), or the loss of it. It
  /// goes through this call so that embeddings which are a unit are gathered for both uses.
  at::Tensor head_input;
  std::shared_ptr<MaskedLmLoss> loss = {};
};
void collect_tensors(BertEmbeddingsInput& in, std::vector<at::Tensor*>& out);

class BertEmbeddings : public nn::Block<BertEmbeddingsInput, at::Tensor> {
 public:
  BertEmbeddings(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }
  /// Whether the loss can be made here: calls of the table alone are not intercepted.
  bool makes_loss() const { return !word_->hooked(); }
  const at::Tensor& word_table() const { return word_->weight; }  // [vocab_size, E]

 protected:
  at::Tensor forward_impl(BertEmbeddingsInput in) override;  // T E, or [rows, vocab_size], or the loss

 private:
  std::string class_name_;
  bool absolute_;
  std::shared_ptr<nn::Embedding> word_, position_, token_type_;  // the last two may be null
  std::shared_ptr<nn::Linear> projection_;                       // DeBERTa's, where they are narrower; or null
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<nn::Dropout> dropout_;
};

struct BertLayerInput {
  at::Tensor hidden;                         // T D
  std::shared_ptr<const BertLayout> layout;  // outlives the forward, for recomputation
  at::Tensor prefix = {};     // [2, V, H, D / H]: keys and values in front of each row's; undefined: none
  at::Tensor positions = {};  // [R, D]: DeBERTa's positions relative to a token; undefined: none
};
void collect_tensors(BertLayerInput& in, std::vector<at::Tensor*>& out);
using BertLayerBlock = nn::Block<BertLayerInput, at::Tensor>;

class BertSelfAttention : public BertLayerBlock {
 public:
  BertSelfAttention(const families::BertConfig& config, const families::Blueprint& plan, std::string class_name,
                    at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(BertLayerInput in) override;

 private:
  std::string class_name_;
  std::int64_t num_heads_;
  double dropout_, scale_;
  bool distance_of_keys_;
  std::shared_ptr<nn::Linear> query_, key_, value_;
  std::shared_ptr<nn::Embedding> distances_;  // null: absolute positions
};

struct BertOutputInput {
  at::Tensor hidden;    // T D or T I
  at::Tensor residual;  // T D
};
void collect_tensors(BertOutputInput& in, std::vector<at::Tensor*>& out);

/// norm(residual + dropout(dense(hidden))): BertSelfOutput and BertOutput.
class BertOutput : public nn::Block<BertOutputInput, at::Tensor> {
 public:
  BertOutput(const families::BertConfig& config, const families::Blueprint& plan, std::string class_name,
             at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(BertOutputInput in) override;

 private:
  std::string class_name_;
  std::shared_ptr<nn::Linear> dense_;
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<nn::Dropout> dropout_;
};

class BertAttention : public BertLayerBlock {
 public:
  BertAttention(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(BertLayerInput in) override;

 private:
  std::string class_name_;
  std::shared_ptr<BertLayerBlock> self_;
  std::shared_ptr<BertOutput> output_;
};

/// activation(dense(x)), without a norm: BertIntermediate and, with tanh, BertPooler.
class BertDense : public nn::Layer {
 public:
  BertDense(const families::Blueprint& plan, Activation activation, std::string class_name, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  std::string class_name_;
  Activation activation_;
  std::shared_ptr<nn::Linear> dense_;
};

class BertLayer : public BertLayerBlock {
 public:
  BertLayer(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(BertLayerInput in) override;

 private:
  std::string class_name_;
  std::shared_ptr<BertAttention> attention_;
  std::shared_ptr<BertDense> intermediate_;
  std::shared_ptr<BertOutput> output_;
};

/// Registers below `host` the norm that `plan` has under this name.
std::shared_ptr<nn::LayerNorm> add_norm(torch::nn::Module& host, const families::BertConfig& config,
                                        const families::Blueprint& plan, const std::string& name, at::ScalarType dtype);

}  // namespace tessera::models
