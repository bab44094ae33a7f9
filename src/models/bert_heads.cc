#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "models/bert_model.h"
#include "models/build_parts.h"
#include "models/classification_loss.h"
#include "nn/layers/activation.h"
#include "nn/layers/container.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::models {
namespace {

double normalizer(const ModelInput& in) {
  return in.loss_normalizer > 0 ? in.loss_normalizer : tensor::on_host(in.labels).ne(-100).sum().item<double>();
}

/// dropout, dense, tanh (ELECTRA: gelu), dropout, out_proj.
class TwoLayerHead : public nn::Layer {
 public:
  TwoLayerHead(const families::BertConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
      : class_name_(c.class_prefix + "ClassificationHead"),
        activation_(c.roberta() ? Activation::kTanh : Activation::kGelu) {
    dense_ = add_linear(*this, plan, "dense", dtype);
    dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.classifier_dropout));
    out_proj_ = add_linear(*this, plan, "out_proj", dtype);
  }
  std::string class_name() const override { return class_name_; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    return (*out_proj_)((*dropout_)(nn::activate((*dense_)((*dropout_)(x)), activation_)));
  }

 private:
  std::string class_name_;
  Activation activation_;
  std::shared_ptr<nn::Linear> dense_, out_proj_;
  std::shared_ptr<nn::Dropout> dropout_;
};

/// DeBERTa's: dropout, dense, activation.
class ContextPooler : public nn::Layer {
 public:
  ContextPooler(const families::DebertaConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
      : activation_(c.pooler_activation) {
    dense_ = add_linear(*this, plan, "dense", dtype);
    dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.pooler_dropout));
  }
  std::string class_name() const override { return "ContextPooler"; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return nn::activate((*dense_)((*dropout_)(x)), activation_); }

 private:
  Activation activation_;
  std::shared_ptr<nn::Linear> dense_;
  std::shared_ptr<nn::Dropout> dropout_;
};

}  // namespace

BertForSequenceClassification::BertForSequenceClassification(const families::BertConfig& config,
                                                             const families::Blueprint& plan, at::ScalarType dtype)
    : BertModel(config, plan, dtype) {
  const auto& head = plan.at("classifier");
  if (!head.parts.empty()) {
    classifier_ = register_module("classifier", std::make_shared<TwoLayerHead>(config, head, dtype));
    return;
  }
  pre_classifier_ = add_linear(*this, plan, "pre_classifier", dtype);
  pooler_ = add_part(*this, plan, "pooler", [&](const families::Blueprint& part) {
    return std::make_shared<ContextPooler>(config.deberta, part, dtype);
  });
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(config.classifier_dropout));
  classifier_ = add_linear(*this, plan, "classifier", dtype);
}

at::Tensor BertForSequenceClassification::scores(const at::Tensor& first) {
  if (!dropout_) return (*classifier_)(first);
  const auto pooled = pre_classifier_ ? nn::activate((*pre_classifier_)(first), Activation::kRelu)
                      : pooler_       ? (*pooler_)(first)
                                      : (*backbone_->pooler())(first);
  return (*classifier_)((*dropout_)(pooled));
}

void BertForSequenceClassification::apply_head(const ModelInput& in, const PackedBatch& batch, const at::Tensor& hidden,
                                               ModelOutput& out) {
  const auto places = at::tensor(batch.rows->begin, at::TensorOptions().dtype(at::kLong));
  const auto first = hidden.index_select(0, tensor::beside(places, hidden));
  const tensor::RowScope rows(keys_at(places));
  const auto logits = scores(first);
  if (in.labels.defined()) {
    const auto loss = config_.is_deberta() ? deberta_classification_loss : classification_loss;
    out.loss = loss(logits, in.labels, config_.classifier, normalizer(in), token_loss());
    if (!is_training()) out.predictions = at::argmax(logits.detach(), -1);
  }
  if (in.want_logits) out.logits = logits;
}

BertForMaskedLm::BertForMaskedLm(const families::BertConfig& config, const families::Blueprint& plan,
                                 at::ScalarType dtype)
    : BertModel(config, plan, dtype) {
  if (config.distilbert())
    build_distilbert_head(plan, dtype);
  else if (config.family == families::BertFamily::kElectra)
    build_electra_head(plan, dtype);
  else if (!config.deberta.legacy_head)
    build_deberta_head(plan, dtype);
  else
    build_bert_head(plan, dtype);
}

// The tied head has a bias but no matrix of its own.
void BertForMaskedLm::build_bert_head(const families::Blueprint& plan, at::ScalarType dtype) {
  const bool roberta = config_.roberta();
  const auto& head_plan = roberta ? plan.at("lm_head") : plan.at("cls").at("predictions");
  const auto& transform_plan = roberta ? head_plan : head_plan.at("transform");
  auto head = std::make_shared<nn::Container>(config_.class_prefix + "LMPredictionHead");
  auto transform = roberta ? head : std::make_shared<nn::Container>("BertPredictionHeadTransform");
  if (!roberta) activation_ = config_.activation;
  bias_ = head->register_parameter("bias", nn::make_parameter({config_.vocab_size}, dtype));
  dense_ = add_linear(*transform, transform_plan, "dense", dtype);
  norm_ = add_norm(*transform, config_, transform_plan, roberta ? "layer_norm" : "LayerNorm", dtype);
  decoder_ = add_linear(*head, head_plan, "decoder", dtype);
  if (roberta) {
    register_module("lm_head", head);
    return;
  }
  head->register_module("transform", transform);
  register_module("cls", std::make_shared<nn::Container>("BertOnlyMLMHead"))->register_module("predictions", head);
}

void BertForMaskedLm::build_deberta_head(const families::Blueprint& plan, at::ScalarType dtype) {
  const auto& head_plan = plan.at("lm_predictions").at("lm_head");
  auto head = std::make_shared<nn::Container>(config_.class_prefix + "LMPredictionHead");
  activation_ = config_.activation;
  bias_ = head->register_parameter("bias", nn::make_parameter({config_.vocab_size}, dtype));
  dense_ = add_linear(*head, head_plan, "dense", dtype);
  norm_ = add_norm(*head, config_, head_plan, "LayerNorm", dtype);
  register_module("lm_predictions", std::make_shared<nn::Container>(config_.class_prefix + "OnlyMLMHead"))
      ->register_module("lm_head", head);
}

void BertForMaskedLm::build_electra_head(const families::Blueprint& plan, at::ScalarType dtype) {
  const std::string name = "generator_predictions";
  auto head = register_module(name, std::make_shared<nn::Container>("ElectraGeneratorPredictions"));
  norm_ = add_norm(*head, config_, plan.at(name), "LayerNorm", dtype);
  dense_ = add_linear(*head, plan.at(name), "dense", dtype);
  add_projector(plan, "generator_lm_head", dtype);
}

void BertForMaskedLm::build_distilbert_head(const families::Blueprint& plan, at::ScalarType dtype) {
  activation_ = config_.activation;
  dense_ = add_linear(*this, plan, "vocab_transform", dtype);
  norm_ = add_norm(*this, config_, plan, "vocab_layer_norm", dtype);
  add_projector(plan, "vocab_projector", dtype);
}

void BertForMaskedLm::add_projector(const families::Blueprint& plan, const std::string& name, at::ScalarType dtype) {
  if (!config_.tied) {
    decoder_ = add_linear(*this, plan, name, dtype);
    return;
  }
  auto place = register_module(name, std::make_shared<nn::Container>("Linear"));
  bias_ = place->register_parameter("bias", nn::make_parameter({config_.vocab_size}, dtype));
}

/// The head of DeBERTa's newer form has no place for a matrix.
bool BertForMaskedLm::untie_head() {
  if (decoder_ || (config_.is_deberta() && !config_.deberta.legacy_head)) return false;
  const auto name = masked_lm_head_name(config_);
  decoder_ = make_untied_head(backbone_->embeddings().word_table());
  if (const auto dot = name.rfind('.'); dot != std::string::npos) {
    named_modules()[name.substr(0, dot)]->register_module(name.substr(dot + 1), decoder_);
  } else {  // the bias is the matrix's own
    decoder_->bias = decoder_->register_parameter("bias", std::exchange(bias_, {}));
    replace_module(name, decoder_);
  }
  config_.tied = false;
  return true;
}

std::string masked_lm_head_name(const families::BertConfig& config) {
  switch (config.family) {
    case families::BertFamily::kRoberta:
      return "lm_head.decoder";
    case families::BertFamily::kElectra:
      return "generator_lm_head";
    case families::BertFamily::kDistilBert:
      return "vocab_projector";
    default:
      return config.deberta.legacy_head ? "cls.predictions.decoder" : "lm_predictions.lm_head.dense";
  }
}

at::Tensor BertForMaskedLm::transformed(const at::Tensor& hidden) {
  return (*norm_)(nn::activate((*dense_)(hidden), activation_));
}

bool BertForMaskedLm::makes_loss(const ModelInput& in) const {
  return decoder_ ? nn::may_read_head(*decoder_, in.input_ids) : backbone_->embeddings().makes_loss();
}

at::Tensor BertForMaskedLm::logits(const at::Tensor& x) {
  const auto products = decoder_ ? (*decoder_)(x) : backbone_->embeddings()({{}, {}, {}, {}, x});
  return bias_.defined() ? products + bias_ : products;
}

void BertForMaskedLm::apply_head(const ModelInput& in, const PackedBatch& batch, const at::Tensor& hidden,
                                 ModelOutput& out) {
  const auto labels = in.labels.defined() ? batch.pack(tensor::on_host(in.labels)) : at::Tensor();
  const bool all = in.want_logits || !labels.defined() || !is_training();
  const auto chosen = all ? at::Tensor() : labels.ne(-100).nonzero().flatten();
  const tensor::RowScope rows(all ? tensor::random_state().rows : keys_at(chosen));
  const auto x = transformed(all ? hidden : hidden.index_select(0, tensor::beside(chosen, hidden)));
  const auto wanted = tensor::beside(all ? labels : labels.index_select(0, chosen), hidden);
  at::Tensor best;
  if (labels.defined() && !in.want_logits && makes_loss(in)) {
    const auto loss = std::make_shared<MaskedLmLoss>(wanted);
    auto& options = loss->options;
    options.bias = bias_.defined() ? bias_ : decoder_->bias;
    options.normalizer = normalizer(in);
    options.loss_scale = in.loss_scale;
    if (in.loss_scale != 1) options.loss_dtype = at::kFloat;  // its gradient, the scale, is too large for float16
    if (!is_training()) options.predictions = &loss->predictions;
    out.loss = decoder_ ? loss->of(x, decoder_->handle()) : backbone_->embeddings()({{}, {}, {}, {}, x, loss});
    best = loss->predictions;
  } else {
    const auto scores = logits(x);
    if (labels.defined()) {
      const auto sum = at::cross_entropy_loss(scores.to(at::kFloat), wanted, {}, at::Reduction::Sum, -100);
      out.loss = (sum / normalizer(in)).to(scores.scalar_type());
      if (!is_training()) best = at::argmax(scores.detach(), -1);
    }
    if (in.want_logits) out.logits = batch.unpack(scores);
  }
  if (best.defined()) out.predictions = batch.unpack(best.unsqueeze(1)).squeeze(-1);
}

}  // namespace tessera::models
