#pragma once
// A layer of DistilBERT (Sanh et al. 2019): BERT's computation in modules with other names, without dropout behind
// attention. Legend as in bert_layers.h.
#include "models/bert_layers.h"

namespace tessera::models {

class DistilBertAttention : public BertSelfAttention {
 public:
  DistilBertAttention(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);

 protected:
  at::Tensor forward_impl(BertLayerInput in) override;

 private:
  std::shared_ptr<nn::Linear> out_;
};

/// Without the dropout at its end, which adds to the residual.
class DistilBertFeedForward : public nn::Layer {
 public:
  DistilBertFeedForward(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return "FFN"; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  Activation activation_;
  std::shared_ptr<nn::Linear> in_, out_;
};

class DistilBertLayer : public BertLayerBlock {
 public:
  DistilBertLayer(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return "TransformerBlock"; }

 protected:
  at::Tensor forward_impl(BertLayerInput in) override;

 private:
  std::shared_ptr<DistilBertAttention> attention_;
  std::shared_ptr<nn::LayerNorm> attention_norm_, output_norm_;
  std::shared_ptr<DistilBertFeedForward> feed_forward_;
  std::shared_ptr<nn::Dropout> dropout_;
};

}  // namespace tessera::models
