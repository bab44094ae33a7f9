#pragma once
// What DeBERTa (He et al. 2021) and DeBERTa-v2 and -v3 (He et al. 2023) have in an encoder that is otherwise BERT's.
// Legend as in bert_layers.h; R positions.
#include "models/bert_layers.h"
#include "nn/ops/distance_scores.h"

namespace tessera::models {

/// Attention whose scores add the products of a token with the positions of others relative to it.
class DisentangledSelfAttention : public BertLayerBlock {
 public:
  DisentangledSelfAttention(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return "DisentangledSelfAttention"; }

 protected:
  at::Tensor forward_impl(BertLayerInput in) override;

 private:
  struct Heads {
    at::Tensor q, k, v;  // T D
  };
  Heads heads(const at::Tensor& hidden);
  nn::DistanceTables distances(const BertLayerInput& in);

  std::int64_t num_heads_;
  double dropout_, scale_;
  std::shared_ptr<nn::Linear> query_, key_, value_;  // null: in_proj_ makes all three, head by head
  std::shared_ptr<nn::Linear> in_proj_;
  at::Tensor q_bias_, v_bias_;                                 // with in_proj_
  std::shared_ptr<nn::Linear> position_key_, position_query_;  // query_ and key_ where these are shared; or null
  std::shared_ptr<nn::Dropout> position_dropout_;
};

/// The table of positions, with its norm.
class DebertaPositions {
 public:
  /// Registers them below `encoder`. Null: attention has none.
  static std::shared_ptr<DebertaPositions> add_to(torch::nn::Module& encoder, const families::BertConfig& config,
                                                  const families::Blueprint& plan, at::ScalarType dtype);
  /// Those that rows of this batch have, [R, D]; the layout is told which they are.
  at::Tensor of(BertLayout& layout);

 private:
  families::DebertaConfig config_;
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::LayerNorm> norm_;  // or null
};

struct DebertaConvolutionInput {
  at::Tensor embedded, hidden;               // T D: what the first layer got, and what it gave
  std::shared_ptr<const BertLayout> layout;  // outlives the forward, for recomputation
};
void collect_tensors(DebertaConvolutionInput& in, std::vector<at::Tensor*>& out);

/// norm(hidden + activation(dropout(convolution of embedded along its row))).
class DebertaConvolution : public nn::Block<DebertaConvolutionInput, at::Tensor> {
 public:
  DebertaConvolution(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return "ConvLayer"; }

 protected:
  at::Tensor forward_impl(DebertaConvolutionInput in) override;

 private:
  at::Tensor convolved(const at::Tensor& x, const nn::SequenceRows& rows) const;

  std::int64_t groups_;
  Activation activation_;
  at::Tensor weight_, bias_;  // [D, D / groups, kernel], [D]
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<nn::Dropout> dropout_;
};

}  // namespace tessera::models
