#include "models/t5_model.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "models/build_parts.h"
#include "models/cache_order.h"
#include "nn/ops/linear_cross_entropy.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::models {

struct T5ForConditionalGeneration::StepCache : Cache {
  std::int64_t rows = 0;  // decoded together, 0 before the first step
  T5Layout layout;
  at::Tensor encoder_hidden;
  std::vector<T5BlockCache> blocks;
  at::Tensor spare;  // for another order of the rows

  bool empty() const override { return rows == 0; }
  /// ModelInput::prefix; before the first step of `rows` rows.
  void begin_with(const at::Tensor& prefix) {
    const auto tokens = prefix.size(1);
    const auto each_row = [&](const at::Tensor& t) {
      return t.flatten(1).unsqueeze(0).expand({rows, tokens, t[0].numel()}).flatten(0, 1).contiguous();
    };
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto own = prefix_of_layer(prefix, i);
      blocks[i].self = {each_row(own[0]), each_row(own[1]), tokens};
    }
    layout.past = tokens;
  }
  void reorder(const at::Tensor& order) override {
    if (blocks.empty() || !blocks[0].self.keys.defined()) return;
    const CacheOrder moved(order, rows, blocks[0].self.capacity, layout.past);
    for (auto& block : blocks) {
      moved.apply(block.self.keys, spare);
      moved.apply(block.self.values, spare);
    }
  }
};

struct T5ForConditionalGeneration::Encoded {
  PackedBatch batch;
  at::Tensor hidden;     // tokens D
  at::Tensor keys = {};  // tokens, undefined without ModelInput::row_ids
};

struct T5ForConditionalGeneration::Embedded {
  at::Tensor source, target;  // tokens D
};

namespace {

PackedBatch packed_source(const ModelInput& in) {
  const auto& source = in.encoder_output.defined() ? in.encoder_output : in.input_ids;
  if (!source.defined()) throw DataError("a sequence-to-sequence batch needs input_ids or encoder_output");
  return pack_batch(in.attention_mask, source.size(0), source.size(1));
}

}  // namespace

T5ForConditionalGeneration::T5ForConditionalGeneration(const families::T5Config& config, at::ScalarType dtype)
    : config_(config) {
  const auto plan = families::blueprint(config);
  shared_ = add_embedding(*this, plan, "shared", dtype);
  encoder_ = register_module("encoder", std::make_shared<T5Stack>(config, plan.at("encoder"), false, dtype));
  decoder_ = register_module("decoder", std::make_shared<T5Stack>(config, plan.at("decoder"), true, dtype));
  lm_head_ = add_linear(*this, plan, "lm_head", dtype);
}

std::shared_ptr<Cache> T5ForConditionalGeneration::make_cache() const {
  auto cache = std::make_shared<StepCache>();
  cache->blocks.resize(config_.num_decoder_layers);
  return cache;
}

// transformers' T5PreTrainedModel._init_weights (mesh-tensorflow's scales).
void T5ForConditionalGeneration::init_parameter(const std::string& name, at::Tensor values,
                                                tensor::RandomKey key) const {
  const auto ends = [&](const char* suffix) { return name.ends_with(suffix); };
  const auto model = static_cast<double>(config_.d_model), factor = config_.initializer_factor;
  if (ends("layer_norm.weight")) {
    values.fill_(factor);
    return;
  }
  double std = factor;  // shared and lm_head
  if (ends(".q.weight")) {
    std *= std::pow(model * static_cast<double>(config_.d_kv), -0.5);
  } else if (ends(".o.weight")) {
    std *= std::pow(static_cast<double>(config_.num_heads * config_.d_kv), -0.5);
  } else if (ends(".wo.weight")) {
    std *= std::pow(static_cast<double>(config_.d_ff), -0.5);
  } else if (name != "shared.weight" && name != "lm_head.weight") {
    std *= std::pow(model, -0.5);
  }
  tensor::fill_normal(values, key, 0.0, std);
}

at::Tensor T5ForConditionalGeneration::shift_right(const at::Tensor& labels) const {
  const auto here = tensor::on_host(labels);
  auto ids = at::empty_like(here);
  ids.select(1, 0).fill_(config_.decoder_start_token_id);
  if (labels.size(1) > 1) {
    const auto before = here.narrow(1, 0, labels.size(1) - 1);
    ids.narrow(1, 1, labels.size(1) - 1).copy_(before.masked_fill(before.eq(-100), config_.pad_token_id));
  }
  return tensor::beside(ids, labels);
}

T5ForConditionalGeneration::Embedded T5ForConditionalGeneration::embed(const ModelInput& in, const PackedBatch& batch,
                                                                       const at::Tensor& target_ids,
                                                                       const nn::GradientSlot& slot) {
  const auto targets_here = tensor::on_host(target_ids).flatten();
  const auto sources_here =
      in.encoder_output.defined() ? targets_here.narrow(0, 0, 0) : batch.pack(tensor::on_host(in.input_ids));
  const std::int64_t sources = sources_here.numel(), targets = targets_here.numel();
  const auto ids = tensor::beside(sources > 0 ? at::cat({sources_here, targets_here}) : targets_here, target_ids);
  const bool plain = !shared_->hooked() && !shared_->adapter();
  const auto rows = plain ? nn::lookup(shared_->weight, ids, slot) : (*shared_)(ids);
  return {sources > 0 ? rows.narrow(0, 0, sources) : at::Tensor(), rows.narrow(0, sources, targets)};
}

T5ForConditionalGeneration::Encoded T5ForConditionalGeneration::encode(const ModelInput& in, const PackedBatch& batch,
                                                                       const at::Tensor& embedded, ModelOutput& out) {
  if (in.encoder_output.defined()) return {batch, batch.pack(in.encoder_output), {}};
  const auto layout = std::make_shared<const T5Layout>(T5Layout{batch.rows, nullptr, batch.visible, {}, 0});
  const auto encoded = (*encoder_)({embedded, {}, layout, nullptr, in.want_hidden});
  if (in.want_hidden || !is_training()) out.encoder_output = batch.unpack(encoded.hidden);
  for (const auto& state : encoded.states) out.encoder_hidden.push_back(batch.unpack(state));
  return {batch, encoded.hidden, {}};
}

at::Tensor T5ForConditionalGeneration::decode(const Encoded& encoded, const at::Tensor& embedded, const ModelInput& in,
                                              ModelOutput& out) {
  const std::int64_t batch = encoded.batch.batch, length = embedded.size(0) / batch;
  const auto rows = std::make_shared<nn::SequenceRows>(nn::SequenceRows::uniform(batch, length, length));
  const auto past = in.prefix.defined() ? in.prefix.size(1) : 0;
  const auto layout = std::make_shared<const T5Layout>(
      T5Layout{rows, encoded.batch.rows, {}, encoded.batch.visible, past, encoded.keys});
  const auto decoded = (*decoder_)({embedded, encoded.hidden, layout, nullptr, in.want_hidden, in.prefix});
  for (const auto& state : decoded.states) out.decoder_hidden.push_back(state.view({batch, length, -1}));
  return decoded.hidden;
}

nn::Layer& T5ForConditionalGeneration::head() {
  return lm_head_ ? static_cast<nn::Layer&>(*lm_head_) : static_cast<nn::Layer&>(*shared_);
}

at::Tensor T5ForConditionalGeneration::logits(const at::Tensor& hidden) {
  return head()(config_.scales_head ? hidden * std::pow(static_cast<double>(config_.d_model), -0.5) : hidden);
}

void T5ForConditionalGeneration::fused_loss(const ModelInput& in, const at::Tensor& hidden,
                                            const nn::GradientSlot& slot, ModelOutput& out) {
  const auto labels = tensor::on_host(in.labels).flatten();
  const double scale = config_.scales_head ? std::pow(static_cast<double>(config_.d_model), -0.5) : 1.0;
  const auto weight = lm_head_ ? lm_head_->handle() : nn::Weight(shared_->head_weight());
  nn::CrossEntropyOptions options{.scale = scale,
                                  .normalizer = normalizer(in),
                                  .token_loss = token_loss(),
                                  .loss_scale = in.loss_scale,
                                  .weight_gradient = slot};
  if (in.loss_scale != 1) options.loss_dtype = at::kFloat;  // its gradient, the scale, is too large for float16
  if (is_training()) {
    const auto chosen = labels.ne(-100).nonzero().flatten();
    out.loss = nn::linear_cross_entropy(hidden.index_select(0, tensor::beside(chosen, hidden)), weight,
                                        tensor::beside(labels.index_select(0, chosen), hidden), options);
  } else {
    options.predictions = &out.predictions;
    out.loss = nn::linear_cross_entropy(hidden, weight, tensor::beside(labels, hidden), options);
    out.predictions = out.predictions.view_as(in.labels);
  }
}

double T5ForConditionalGeneration::normalizer(const ModelInput& in) const {
  return in.loss_normalizer > 0 ? in.loss_normalizer : tensor::on_host(in.labels).ne(-100).sum().item<double>();
}

bool T5ForConditionalGeneration::loss_is_fused(const ModelInput& in) {
  return in.labels.defined() && !in.want_logits &&
         (lm_head_ ? nn::may_read_head(*lm_head_, in.labels) : !shared_->hooked());
}

void T5ForConditionalGeneration::loss(const ModelInput& in, const at::Tensor& hidden, const nn::GradientSlot& slot,
                                      ModelOutput& out) {
  if (loss_is_fused(in)) return fused_loss(in, hidden, slot, out);
  const auto flat = logits(hidden);
  // Upstream's loss is a number of the logits' dtype; the sum is made in float32 so that rounding happens once.
  const auto sum = nn::sum_token_losses(flat.to(at::kFloat), in.labels.flatten(), token_loss());
  out.loss = sum / normalizer(in);
  if (in.loss_scale == 1) out.loss = out.loss.to(flat.scalar_type());
  if (!is_training()) out.predictions = at::argmax(flat.detach(), -1).view_as(in.labels);
  if (in.want_logits) out.logits = flat.view({in.labels.size(0), in.labels.size(1), -1});
}

ModelOutput T5ForConditionalGeneration::step(ModelInput in) {
  auto& cache = dynamic_cast<StepCache&>(*in.cache);
  const std::int64_t rows = in.decoder_input_ids.size(0), length = in.decoder_input_ids.size(1);
  ModelOutput out;
  if (cache.rows == 0) {
    const auto batch = packed_source(in);
    const auto encoded = encode(
        in, batch,
        in.encoder_output.defined() ? at::Tensor() : (*shared_)(batch.pack_beside(in.input_ids, in.input_ids)), out);
    const std::int64_t each = rows / encoded.batch.batch;
    auto sources = std::make_shared<nn::SequenceRows>();
    for (std::int64_t r = 0; r < rows; ++r) {
      sources->begin.push_back(encoded.batch.rows->begin[r / each]);
      sources->length.push_back(encoded.batch.rows->length[r / each]);
    }
    cache.rows = rows;
    cache.layout = {nullptr, sources, {}, encoded.batch.visible, 0};
    cache.encoder_hidden = encoded.hidden;
    if (in.prefix.defined()) cache.begin_with(in.prefix);
  }
  TESSERA_CHECK(rows == cache.rows, "the number of rows may not change while decoding");
  cache.layout.rows = std::make_shared<nn::SequenceRows>(nn::SequenceRows::uniform(rows, length, length));
  const auto decoded = (*decoder_)({(*shared_)(in.decoder_input_ids.flatten()), cache.encoder_hidden,
                                    std::make_shared<const T5Layout>(cache.layout), &cache.blocks, false});
  cache.layout.past += length;
  out.logits = logits(decoded.hidden).view({rows, length, -1});
  return out;
}

ModelOutput T5ForConditionalGeneration::compute(ModelInput in) {
  if (in.cache) return step(std::move(in));
  if (!in.decoder_input_ids.defined() && !in.labels.defined()) {
    throw DataError("a sequence-to-sequence batch needs labels or decoder_input_ids");
  }
  ModelOutput out;
  const auto batch = packed_source(in);
  const auto ids = in.decoder_input_ids.defined() ? in.decoder_input_ids : shift_right(in.labels);
  const bool shares = config_.tied && loss_is_fused(in) && !shared_->adapter();
  const auto slot = shares ? c10::make_intrusive<nn::SharedGradient>() : nn::GradientSlot();
  const auto embedded = embed(in, batch, ids, slot);
  const auto source_keys = token_keys(in.row_ids, in.attention_mask, batch.batch, batch.length);
  const tensor::PassScope draws(source_keys.defined() ? batch.pack(source_keys) : source_keys, in.first_draw);
  auto encoded = encode(in, batch, embedded.source, out);
  encoded.keys = tensor::random_state().rows;
  const auto target_keys = token_keys(in.row_ids, {}, ids.size(0), ids.size(1));
  const tensor::RowScope of_target(target_keys.defined() ? target_keys.flatten() : target_keys);
  const auto hidden = decode(encoded, embedded.target, in, out);
  if (in.labels.defined()) {
    loss(in, hidden, slot, out);
  } else if (in.want_logits) {
    out.logits = logits(hidden).view({ids.size(0), ids.size(1), -1});
  }
  return out;
}

}  // namespace tessera::models
