#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>

#include "models/bert_model.h"
#include "models/build_parts.h"
#include "models/classification_loss.h"
#include "nn/layers/container.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::models {
namespace {

double normalizer(const ModelInput& in) {
  return in.loss_normalizer > 0 ? in.loss_normalizer : in.labels.ne(-100).sum().item<double>();
}

/// dropout, dense, tanh, dropout, out_proj.
class RobertaClassificationHead : public nn::Layer {
 public:
  RobertaClassificationHead(const families::BertConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
      : class_name_(c.class_prefix + "ClassificationHead") {
    dense_ = add_linear(*this, plan, "dense", dtype);
    dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.classifier_dropout));
    out_proj_ = add_linear(*this, plan, "out_proj", dtype);
  }
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return (*out_proj_)((*dropout_)((*dense_)((*dropout_)(x)).tanh())); }

 private:
  std::string class_name_;
  std::shared_ptr<nn::Linear> dense_, out_proj_;
  std::shared_ptr<nn::Dropout> dropout_;
};

}  // namespace

BertForSequenceClassification::BertForSequenceClassification(const families::BertConfig& config,
                                                             const families::Blueprint& plan, at::ScalarType dtype)
    : BertModel(config, plan, dtype) {
  if (config.roberta) {
    classifier_ = register_module("classifier",
                                  std::make_shared<RobertaClassificationHead>(config, plan.at("classifier"), dtype));
    return;
  }
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.classifier_dropout));
  classifier_ = add_linear(*this, plan, "classifier", dtype);
}

void BertForSequenceClassification::apply_head(const ModelInput& in, const PackedBatch& batch, const at::Tensor& hidden,
                                               ModelOutput& out) {
  const auto places = at::tensor(batch.rows->begin, at::TensorOptions().dtype(at::kLong));
  auto first = hidden.index_select(0, tensor::beside(places, hidden));
  const tensor::RowScope rows(keys_at(places));
  if (backbone_->pooler()) first = (*dropout_)((*backbone_->pooler())(first));
  const auto logits = (*classifier_)(first);
  if (in.labels.defined()) {
    out.loss = classification_loss(logits, in.labels, config_.classifier, normalizer(in));
    if (!is_training()) out.predictions = at::argmax(logits.detach(), -1);
  }
  if (in.want_logits) out.logits = logits;
}

// The tied head has a bias but no matrix of its own.
BertForMaskedLm::BertForMaskedLm(const families::BertConfig& config, const families::Blueprint& plan,
                                 at::ScalarType dtype)
    : BertModel(config, plan, dtype) {
  const auto& head_plan = config.roberta ? plan.at("lm_head") : plan.at("cls").at("predictions");
  const auto& transform_plan = config.roberta ? head_plan : head_plan.at("transform");
  auto head = std::make_shared<nn::Container>(config.class_prefix + "LMPredictionHead");
  auto transform = config.roberta ? head : std::make_shared<nn::Container>("BertPredictionHeadTransform");
  bias_ = head->register_parameter("bias", nn::make_parameter({config.vocab_size}, dtype));
  dense_ = add_linear(*transform, transform_plan, "dense", dtype);
  norm_ = add_norm(*transform, config, transform_plan, config.roberta ? "layer_norm" : "LayerNorm", dtype);
  decoder_ = add_linear(*head, head_plan, "decoder", dtype);
  if (config.roberta) {
    register_module("lm_head", head);
    return;
  }
  head->register_module("transform", transform);
  register_module("cls", std::make_shared<nn::Container>("BertOnlyMLMHead"))->register_module("predictions", head);
}

at::Tensor BertForMaskedLm::logits(const at::Tensor& hidden) {
  const auto activation = config_.roberta ? Activation::kGelu : config_.activation;
  const auto x = (*norm_)(nn::activate((*dense_)(hidden), activation));
  return (decoder_ ? (*decoder_)(x) : backbone_->embeddings()({{}, {}, {}, x})) + bias_;
}

void BertForMaskedLm::apply_head(const ModelInput& in, const PackedBatch& batch, const at::Tensor& hidden,
                                 ModelOutput& out) {
  const auto labels = in.labels.defined() ? batch.pack(in.labels) : at::Tensor();
  const bool all = in.want_logits || !labels.defined() || !is_training();
  const auto chosen = all ? at::Tensor() : labels.ne(-100).nonzero().flatten();
  const tensor::RowScope rows(all ? tensor::random_state().rows : keys_at(chosen));
  const auto scores = logits(all ? hidden : hidden.index_select(0, chosen));
  if (labels.defined()) {
    const auto wanted = all ? labels : labels.index_select(0, chosen);
    const auto sum = at::cross_entropy_loss(scores.to(at::kFloat), wanted, {}, at::Reduction::Sum, -100);
    out.loss = (sum / normalizer(in)).to(scores.scalar_type());
    if (!is_training()) {
      const auto best = at::argmax(scores.detach(), -1, /*keepdim=*/true);
      out.predictions = batch.unpack(best).squeeze(-1);
    }
  }
  if (in.want_logits) out.logits = batch.unpack(scores);
}

}  // namespace tessera::models
