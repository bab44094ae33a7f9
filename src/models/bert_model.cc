#include "models/bert_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros_like.h>

#include <fmt/format.h>

#include <cmath>

#include "models/build_parts.h"
#include "models/distilbert_layers.h"
#include "nn/layers/container.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::models {
namespace {

/// [B, S] int64 where the ids are: 0, 1, 2, ... in each row, or what RoBERTa derives from the ids: padding_idx + 1, ...
/// where a token is. Behind a prefix of so many tokens.
at::Tensor default_positions(const families::BertConfig& config, const at::Tensor& ids, std::int64_t prefix) {
  if (!config.roberta()) return (at::arange(ids.size(1), ids.options().dtype(at::kLong)) + prefix).expand_as(ids);
  const auto token = ids.ne(config.pad_token_id).to(at::kLong);
  return (token.cumsum(1) + prefix) * token + config.pad_token_id;
}

/// The head looks at the first place of each row, so it must be there: rows with padding on the left keep it.
PackedBatch packed(const ModelInput& in) {
  const std::int64_t batch = in.input_ids.size(0), length = in.input_ids.size(1);
  const auto mask = tensor::on_host(in.attention_mask);
  if (!mask.defined() || mask.select(1, 0).ne(0).all().item<bool>())
    return pack_batch(in.attention_mask, batch, length);
  auto out = pack_batch({}, batch, length);
  out.visible = tensor::beside(mask.ne(0).to(at::kByte).flatten().contiguous(), in.attention_mask);
  return out;
}

void check(const families::BertConfig& config, const ModelInput& in) {
  if (!in.input_ids.defined() || in.input_ids.dim() != 2 || in.input_ids.numel() == 0)
    throw DataError("a batch for " + config.names.base + " needs input_ids [rows, length]");
  const auto types = config.distilbert() ? 0 : config.type_vocab_size;
  const auto given = tensor::on_host(in.token_type_ids);
  if (given.defined() && types > 0 && given.max().item<std::int64_t>() >= types)
    throw DataError(
        fmt::format("token_type_ids has {}, and the model has {} types (type_vocab_size of config.json): "
                    "the tokenizer is another model's, or model_input_names of its tokenizer_config.json "
                    "should not list token_type_ids",
                    given.max().item<std::int64_t>(), types));
  if (config.positions == families::BertPositions::kNone) return;
  const auto longest = config.longest_row() - (in.prefix.defined() ? in.prefix.size(1) : 0);
  if (in.input_ids.size(1) > longest) {
    throw DataError("a row of " + std::to_string(in.input_ids.size(1)) + " tokens is longer than the model's " +
                    std::to_string(longest) + " positions; cut the rows (--max_length)");
  }
}

std::shared_ptr<BertLayerBlock> make_layer(const families::BertConfig& c, const families::Blueprint& plan,
                                           at::ScalarType dtype) {
  if (c.distilbert()) return std::make_shared<DistilBertLayer>(c, plan, dtype);
  return std::make_shared<BertLayer>(c, plan, dtype);
}

}  // namespace

BertBackbone::BertBackbone(const families::BertConfig& c, const families::Blueprint& plan, at::ScalarType dtype)
    : torch::nn::Module(c.class_prefix + "Model") {
  embeddings_ = register_module("embeddings", std::make_shared<BertEmbeddings>(c, plan.at("embeddings"), dtype));
  projection_ = add_linear(*this, plan, "embeddings_project", dtype);
  const auto encoder_class = c.distilbert() ? "Transformer" : c.class_prefix + "Encoder";
  auto encoder = register_module(c.names.encoder, std::make_shared<nn::Container>(encoder_class));
  auto list = std::make_shared<nn::Container>("ModuleList");
  for (const auto& part : plan.at(c.names.encoder).at("layer").parts)
    layers_.push_back(list->register_module(part.name, make_layer(c, part, dtype)));
  encoder->register_module("layer", list);
  const auto& beside = plan.at(c.names.encoder);
  positions_ = DebertaPositions::add_to(*encoder, c, beside, dtype);
  convolution_ = add_part(*encoder, beside, "conv", [&](const families::Blueprint& part) {
    return std::make_shared<DebertaConvolution>(c, part, dtype);
  });
  pooler_ = add_part(*this, plan, "pooler", [&](const families::Blueprint& part) {
    return std::make_shared<BertDense>(part, Activation::kTanh, c.class_prefix + "Pooler", dtype);
  });
}

at::Tensor BertBackbone::encode(const BertEmbeddingsInput& tokens, BertLayout places, const at::Tensor& prefix,
                                std::vector<at::Tensor>* states) {
  auto hidden = (*embeddings_)(tokens);
  if (projection_) hidden = (*projection_)(hidden);
  const auto positions = positions_ ? positions_->of(places) : at::Tensor();
  const auto layout = std::make_shared<const BertLayout>(std::move(places));
  const auto embedded = convolution_ ? hidden : at::Tensor();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (states) states->push_back(hidden);
    hidden = (*layers_[i])({hidden, layout, PrefixRows::of_layer(prefix, i), positions});
    if (i == 0 && convolution_) hidden = (*convolution_)({embedded, hidden, layout});
  }
  if (states) states->push_back(hidden);
  return hidden;
}

BertModel::BertModel(const families::BertConfig& config, const families::Blueprint& plan, at::ScalarType dtype)
    : config_(config) {
  const auto& base = config.names.base;
  backbone_ = register_module(base, std::make_shared<BertBackbone>(config, plan.at(base), dtype));
}

ModelKind BertModel::kind() const {
  return config_.head == families::BertHead::kMaskedLm ? ModelKind::kMaskedLm : ModelKind::kSequenceClassification;
}

PrefixSizes BertModel::prefix_sizes() const {
  if (config_.positions != families::BertPositions::kAbsolute || config_.distilbert() || config_.is_deberta())
    return {};
  return {config_.num_layers, config_.num_heads, config_.hidden_size / config_.num_heads};
}

std::shared_ptr<Cache> BertModel::make_cache() const {
  throw ConfigError(class_name() + " is an encoder: it does not generate text", "model_type");
}

void BertModel::init_parameter(const std::string& name, at::Tensor values, tensor::RandomKey key) const {
  if (name.find(".conv.conv.") != std::string::npos) {  // upstream leaves torch's first values
    const auto& d = config_.deberta;
    const double bound = 1 / std::sqrt(static_cast<double>(config_.hidden_size / d.conv_groups * d.conv_kernel));
    tensor::fill_uniform(values, key, -bound, bound);
  } else if (name.ends_with("bias")) {
    values.zero_();
  } else if (name.ends_with("LayerNorm.weight") || name.ends_with("layer_norm.weight")) {
    values.fill_(1);
  } else {
    tensor::fill_normal(values, key, 0.0, config_.initializer_range);
    if (name.ends_with("word_embeddings.weight") && config_.padding_idx >= 0)
      values.select(0, config_.padding_idx).zero_();
  }
}

ModelOutput BertModel::compute(ModelInput in) {
  check(config_, in);
  const auto prefix = in.prefix.defined() ? in.prefix.size(1) : 0;
  const auto batch = packed(in);
  const auto ids = tensor::on_host(in.input_ids);
  const auto pack = [&](const at::Tensor& given, const at::Tensor& fallback) {
    return batch.pack_beside(given.defined() ? given : fallback, in.input_ids);
  };
  const BertEmbeddingsInput tokens{pack(ids, {}),
                                   pack(in.position_ids, default_positions(config_, ids, prefix)),
                                   pack(in.token_type_ids, at::zeros_like(ids)),
                                   config_.is_deberta() ? batch.visible : at::Tensor(),
                                   {}};
  const auto keys = token_keys(in.row_ids, in.attention_mask, in.input_ids.size(0), in.input_ids.size(1));
  const tensor::PassScope draws(keys.defined() ? batch.pack(keys) : keys, in.first_draw);
  BertLayout places{batch.rows, batch.visible, {}};
  if (prefix > 0) {
    places.prefix = behind_prefix(*batch.rows, prefix);
    places.prefix.index = tensor::beside(places.prefix.index, in.input_ids);
    places.visible = places.prefix.visible(batch.visible);
  }
  ModelOutput out;
  std::vector<at::Tensor> states;
  const auto hidden = backbone_->encode(tokens, std::move(places), in.prefix, in.want_hidden ? &states : nullptr);
  for (const auto& state : states) out.hidden.push_back(batch.unpack(state));
  apply_head(in, batch, hidden, out);
  return out;
}

std::shared_ptr<Model> make_bert(const families::BertConfig& config, at::ScalarType dtype) {
  const auto plan = families::blueprint(config);
  if (config.head == families::BertHead::kMaskedLm) return std::make_shared<BertForMaskedLm>(config, plan, dtype);
  return std::make_shared<BertForSequenceClassification>(config, plan, dtype);
}

}  // namespace tessera::models
