#pragma once
#include <memory>
#include <string>
#include <vector>

#include "models/bert_layers.h"
#include "models/deberta_layers.h"
#include "models/model.h"
#include "models/padding.h"

namespace tessera::models {

/// "bert", "roberta", "electra", "distilbert" or "deberta": embeddings, layers and, for BERT's classifier, the pooler.
class BertBackbone : public torch::nn::Module {
 public:
  BertBackbone(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  BertEmbeddings& embeddings() { return *embeddings_; }
  BertDense* pooler() { return pooler_.get(); }
  /// T D after the last layer; the inputs of the layers and the result are appended to *states unless null. prefix:
  /// keys and values of each layer, [2 * layers, V, H, D / H], or undefined.
  at::Tensor encode(const BertEmbeddingsInput& tokens, BertLayout layout, const at::Tensor& prefix,
                    std::vector<at::Tensor>* states);

 private:
  std::shared_ptr<BertEmbeddings> embeddings_;
  std::shared_ptr<nn::Linear> projection_;  // of embeddings that are narrower or wider than the layers; or null
  std::vector<std::shared_ptr<BertLayerBlock>> layers_;
  std::shared_ptr<DebertaPositions> positions_;      // or null
  std::shared_ptr<DebertaConvolution> convolution_;  // or null
  std::shared_ptr<BertDense> pooler_;
};

/// BERT, RoBERTa, ELECTRA, DistilBERT and DeBERTa (Devlin et al. 2019, Liu et al. 2019, Clark et al. 2020, Sanh et al.
/// 2019, He et al. 2021 and 2023) with transformers' module and parameter names.
class BertModel : public Model {
 public:
  BertModel(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  ModelKind kind() const override;
  /// None where positions are relative, and in DistilBERT and DeBERTa, which take none upstream.
  PrefixSizes prefix_sizes() const override;
  /// ConfigError: encoders do not generate.
  std::shared_ptr<Cache> make_cache() const override;
  void init_parameter(const std::string& name, at::Tensor values, tensor::RandomKey key) const override;

 protected:
  ModelOutput compute(ModelInput in) override;
  /// Fills in loss, logits and predictions. hidden: T D.
  virtual void apply_head(const ModelInput& in, const PackedBatch& batch, const at::Tensor& hidden,
                          ModelOutput& out) = 0;

  families::BertConfig config_;
  std::shared_ptr<BertBackbone> backbone_;
};

class BertForSequenceClassification : public BertModel {
 public:
  BertForSequenceClassification(const families::BertConfig& config, const families::Blueprint& plan,
                                at::ScalarType dtype);
  std::string class_name() const override { return config_.class_prefix + "ForSequenceClassification"; }

 protected:
  /// in.labels as in classification_loss().
  void apply_head(const ModelInput& in, const PackedBatch& batch, const at::Tensor& hidden, ModelOutput& out) override;

 private:
  at::Tensor scores(const at::Tensor& first);
  std::shared_ptr<nn::Dropout> dropout_;
  std::shared_ptr<nn::Linear> pre_classifier_;  // DistilBERT's; or null
  std::shared_ptr<nn::Layer> pooler_;           // DeBERTa's; or null
  std::shared_ptr<nn::Layer> classifier_;       // a Linear, or the two of RoBERTa and ELECTRA
};

class BertForMaskedLm : public BertModel {
 public:
  BertForMaskedLm(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype);
  std::string class_name() const override { return config_.class_prefix + "ForMaskedLM"; }
  bool untie_head() override;

 protected:
  /// in.labels: [B, S]. Without want_logits only the labelled tokens go through the head.
  void apply_head(const ModelInput& in, const PackedBatch& batch, const at::Tensor& hidden, ModelOutput& out) override;

 private:
  void build_bert_head(const families::Blueprint& plan, at::ScalarType dtype);
  void build_electra_head(const families::Blueprint& plan, at::ScalarType dtype);
  void build_deberta_head(const families::Blueprint& plan, at::ScalarType dtype);
  void build_distilbert_head(const families::Blueprint& plan, at::ScalarType dtype);
  void add_projector(const families::Blueprint& plan, const std::string& name, at::ScalarType dtype);
  at::Tensor transformed(const at::Tensor& hidden);  // the head's input
  /// Whether the head is nothing but a matrix, which may be read outside of its call.
  bool makes_loss(const ModelInput& in) const;
  at::Tensor logits(const at::Tensor& input);
  Activation activation_ = Activation::kGelu;
  std::shared_ptr<nn::Linear> dense_;
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<nn::Linear> decoder_;  // null when tied
  at::Tensor bias_;                      // [vocab_size]; undefined where it is decoder_'s own
};

/// The module of the masked-LM head's matrix, tied or not.
std::string masked_lm_head_name(const families::BertConfig& config);

/// The model with the head that the config names.
std::shared_ptr<Model> make_bert(const families::BertConfig& config, at::ScalarType dtype);

}  // namespace tessera::models
