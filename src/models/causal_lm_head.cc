// The output side of CausalLm: logits, loss, initial values.
#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "models/causal_lm.h"
#include "models/mixture_of_experts.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/token_log_probs.h"
#include "tensor/device.h"

namespace tessera::models {

nn::Layer& CausalLm::head() {
  return lm_head_ ? static_cast<nn::Layer&>(*lm_head_) : static_cast<nn::Layer&>(*embedding_);
}

nn::Weight CausalLm::head_weight() {
  return lm_head_ ? lm_head_->handle() : nn::Weight(embedding_->head_weight());
}

at::Tensor CausalLm::logits(const at::Tensor& hidden) {
  auto out = head()(hidden);
  if (head_bias_.defined()) out = out + head_bias_;
  if (config_.logit_scale != 1.0) out = out * config_.logit_scale;
  if (config_.logit_softcap > 0) out = at::tanh(out / config_.logit_softcap) * config_.logit_softcap;
  return out;
}

bool CausalLm::loss_is_fused(const ModelInput& in) {
  return in.labels.defined() && !in.want_logits &&
         (lm_head_ ? nn::may_read_head(*lm_head_, in.input_ids) : !embedding_->hooked());
}

void CausalLm::loss(const ModelInput& in, const DecoderBatch& batch, const Pass& pass, const nn::GradientSlot& slot,
                    ModelOutput& out) {
  const auto counts = batch.labels.ne(-100);
  const double normalizer = in.loss_normalizer > 0 ? in.loss_normalizer : counts.sum().item<double>();
  at::Tensor predictions;
  if (loss_is_fused(in)) {
    nn::CrossEntropyOptions options;
    options.scale = config_.logit_scale;
    options.softcap = config_.logit_softcap;
    options.normalizer = normalizer;
    options.token_loss = token_loss();
    options.loss_scale = in.loss_scale;
    options.weight_gradient = slot;
    options.loss_dtype = at::kFloat;
    if (!is_training()) options.predictions = &predictions;
    options.bias = lm_head_ ? lm_head_->bias : head_bias_;
    const auto chosen = is_training() ? counts.nonzero().flatten() : at::Tensor();
    const auto rows = [&](const at::Tensor& t) {
      return chosen.defined() ? t.index_select(0, tensor::beside(chosen, t)) : t;
    };
    out.loss = nn::linear_cross_entropy(rows(pass.hidden), head_weight(),
                                        tensor::beside(rows(batch.labels), pass.hidden), options);
  } else {
    const auto flat = logits(pass.hidden);
    const auto labels = tensor::beside(batch.labels, flat);
    out.loss = nn::sum_token_losses(flat.to(at::kFloat), labels, token_loss()) / normalizer;
    if (!is_training()) predictions = at::argmax(flat.detach(), -1);
    if (in.want_logits) out.logits = batch.packed.unpack(flat);
  }
  if (predictions.defined()) out.predictions = batch.packed.unpack(predictions.unsqueeze(1)).squeeze(2);
  if (in.router_loss.value_or(config_.experts.auxiliary_loss) && config_.experts.auxiliary_coefficient != 0 &&
      !pass.router_logits.empty()) {
    const auto balance =
        load_balancing_loss(pass.router_logits, config_.experts, batch.packed.visible, in.sum_over_ranks);
    const auto labels = counts.sum().to(at::kDouble).view({1});
    if (in.sum_over_ranks) in.sum_over_ranks(labels);
    // Of a step's batches each counts by its labels, as in the mean over all of them.
    const double part = in.loss_normalizer > 0 ? labels.item<double>() / normalizer : 1.0;
    out.loss = out.loss + balance * (config_.experts.auxiliary_coefficient * part);
  }
}

void CausalLm::score(const ModelInput& in, const DecoderBatch& batch, const Pass& pass, const nn::GradientSlot& slot,
                     ModelOutput& out) {
  const auto counted = batch.labels.ne(-100).nonzero().flatten();
  const auto chosen = tensor::beside(counted, pass.hidden);
  const auto hidden = pass.hidden.index_select(0, chosen);
  const auto labels = tensor::beside(batch.labels.index_select(0, counted), pass.hidden);
  const bool statistics = in.token_scores == ModelInput::TokenScores::kWithStatistics;
  nn::TokenScores scores;
  if (loss_is_fused(in) && !config_.head_bias) {
    nn::TokenScoreOptions options;
    options.scale = config_.logit_scale;
    options.softcap = config_.logit_softcap;
    options.statistics = statistics;
    options.weight_gradient = slot;
    scores = nn::token_log_probs(hidden, head_weight(), labels, options);
  } else {
    scores = nn::token_log_probs_of(logits(hidden), labels, statistics);
  }
  const auto in_place = [&](const at::Tensor& rows) {
    auto sizes = rows.sizes().vec();
    sizes[0] = batch.labels.size(0);
    return at::index_copy(at::zeros(sizes, rows.options()), 0, chosen, rows);
  };
  out.token_logps = batch.packed.unpack(in_place(scores.logps).unsqueeze(1)).squeeze(2);
  if (statistics) out.token_statistics = batch.packed.unpack(in_place(scores.statistics));
}

// transformers' default _init_weights: normal matrices, zero biases, norms that do nothing.
void CausalLm::init_parameter(const std::string& name, at::Tensor values, tensor::RandomKey key) const {
  if (values.dim() == 1) {
    const bool norm = name.ends_with("weight");
    values.fill_(norm && config_.norm != families::NormKind::kRmsOffset ? 1 : 0);
    return;
  }
  const bool ends_branch =
      name.ends_with("." + config_.names.o + ".weight") || name.ends_with("." + config_.names.down + ".weight");
  const double std = ends_branch && config_.output_initializer_range > 0 ? config_.output_initializer_range
                                                                         : config_.initializer_range;
  tensor::fill_normal(values, key, 0.0, std);
  if (config_.padding_idx >= 0 && name == config_.names.base + "." + config_.names.embedding + ".weight")
    values.select(0, config_.padding_idx).zero_();
}

}  // namespace tessera::models
