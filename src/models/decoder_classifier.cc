#include "models/decoder_classifier.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>

#include "models/build_parts.h"
#include "models/classification_loss.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::models {

DecoderClassifier::DecoderClassifier(families::DecoderConfig config, at::ScalarType dtype)
    : CausalLm(std::move(config), dtype) {
  score_ = add_linear(*this, families::blueprint(config_), "score", dtype);
}

std::string DecoderClassifier::class_name() const {
  return families::classifier_class(config_);
}

std::shared_ptr<Cache> DecoderClassifier::make_cache() const {
  throw ConfigError(class_name() + " classifies: it does not generate text", "architectures");
}

/// [B, S] bool, one place in each row: the last one without the padding token, the first one where there is none.
at::Tensor DecoderClassifier::last_tokens(const at::Tensor& ids) const {
  if (!config_.given_pad_token_id && ids.size(0) > 1)
    throw ConfigError(
        "config.json has no pad_token_id, so the ends of rows are not known: set it, or give one row at "
        "a time",
        "pad_token_id");
  const at::Tensor columns = at::arange(ids.size(1), ids.options());
  const at::Tensor last = config_.given_pad_token_id
                              ? at::argmax(ids.ne(*config_.given_pad_token_id) * columns, 1, /*keepdim=*/true)
                              : at::full({ids.size(0), 1}, ids.size(1) - 1, ids.options());
  return columns.unsqueeze(0).eq(last);
}

ModelOutput DecoderClassifier::compute(ModelInput in) {
  at::Tensor labels;
  std::swap(labels, in.labels);
  if (!in.input_ids.defined() || in.input_ids.dim() != 2 || in.input_ids.numel() == 0)
    throw DataError("a classifier needs input_ids of shape [rows, length]");
  const at::Tensor last = last_tokens(tensor::on_host(in.input_ids));
  const auto batch = make_decoder_batch(in, config_.positions_count_visible, last);
  const auto keys = token_keys(in.row_ids, in.attention_mask, in.input_ids.size(0), in.input_ids.size(1));
  const tensor::PassScope draws(keys.defined() ? batch.packed.pack(keys) : keys, in.first_draw);
  const auto pass = decode(in, batch, {});
  ModelOutput out;
  for (const auto& state : pass.states) out.hidden.push_back(batch.packed.unpack(state));
  const at::Tensor places = batch.packed.pack(last).nonzero().flatten();
  const tensor::RowScope rows(keys_at(places));
  const at::Tensor logits = (*score_)(pass.hidden.index_select(0, tensor::beside(places, pass.hidden)));
  if (labels.defined()) {
    const double count =
        in.loss_normalizer > 0 ? in.loss_normalizer : tensor::on_host(labels).ne(-100).sum().item<double>();
    out.loss = classification_loss(logits, labels, *config_.classifier, count, token_loss());
    if (!is_training()) out.predictions = at::argmax(logits.detach(), -1);
  }
  if (in.want_logits) out.logits = logits;
  return out;
}

}  // namespace tessera::models
