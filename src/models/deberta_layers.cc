#include "models/deberta_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "models/build_parts.h"
#include "models/relative_position.h"
#include "nn/ops/attention.h"
#include "nn/ops/matmul.h"
#include "nn/ops/sums.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/nn/init.h"

namespace tessera::models {

DisentangledSelfAttention::DisentangledSelfAttention(const families::BertConfig& c, const families::Blueprint& plan,
                                                     at::ScalarType dtype)
    : num_heads_(c.num_heads),
      dropout_(c.attention_dropout),
      scale_(1.0 / std::sqrt(static_cast<double>(c.hidden_size / c.num_heads * c.deberta.scores))) {
  const bool first = c.family == families::BertFamily::kDeberta;
  if (first) {
    q_bias_ = register_parameter("q_bias", nn::make_parameter({c.hidden_size}, dtype));
    v_bias_ = register_parameter("v_bias", nn::make_parameter({c.hidden_size}, dtype));
    in_proj_ = add_linear(*this, plan, "in_proj", dtype);
  } else {
    query_ = add_linear(*this, plan, c.names.query, dtype);
    key_ = add_linear(*this, plan, c.names.key, dtype);
    value_ = add_linear(*this, plan, c.names.value, dtype);
  }
  position_key_ = add_linear(*this, plan, first ? "pos_proj" : "pos_key_proj", dtype);
  position_query_ = add_linear(*this, plan, first ? "pos_q_proj" : "pos_query_proj", dtype);
  if (c.deberta.shares_projections) {
    if (c.deberta.content_to_position) position_key_ = key_;
    if (c.deberta.position_to_content) position_query_ = query_;
  }
  position_dropout_ = register_module("pos_dropout", std::make_shared<nn::Dropout>(c.hidden_dropout));
}

DisentangledSelfAttention::Heads DisentangledSelfAttention::heads(const at::Tensor& hidden) {
  if (!in_proj_) {
    const auto [for_q, for_k, for_v] = nn::for_readers<3>(hidden);
    return {(*query_)(for_q), (*key_)(for_k), (*value_)(for_v)};
  }
  const auto of_heads = [&](const at::Tensor& bias) { return bias.view({num_heads_, -1}); };
  const auto biases = at::stack({of_heads(q_bias_), at::zeros_like(of_heads(q_bias_)), of_heads(v_bias_)}, 1);
  const auto all = nn::plus((*in_proj_)(hidden), biases.flatten());
  const auto parts = all.view({hidden.size(0), num_heads_, 3, -1}).unbind(2);  // [T, H, D / H]
  return {parts[0], parts[1], parts[2]};
}

nn::DistanceTables DisentangledSelfAttention::distances(const BertLayerInput& in) {
  nn::DistanceTables out;
  if (!in.positions.defined()) return out;
  const tensor::RowScope rows(in.layout->position_keys);
  const auto positions = (*position_dropout_)(in.positions);
  if (position_key_) out.with_query = (*position_key_)(positions);
  if (position_query_) out.with_key = (*position_query_)(positions);
  out.rows = in.layout->distance_rows;
  return out;
}

at::Tensor DisentangledSelfAttention::forward_impl(BertLayerInput in) {
  auto options = attention_options(*in.layout, scale_, is_training() ? dropout_ : 0.0);
  options.hides_queries = true;
  const auto x = heads(in.hidden);
  return nn::attention(nn::query_heads(x.q, num_heads_), nn::key_heads(x.k, num_heads_), nn::key_heads(x.v, num_heads_),
                       options, {.distances = distances(in)});
}

std::shared_ptr<DebertaPositions> DebertaPositions::add_to(torch::nn::Module& encoder, const families::BertConfig& c,
                                                           const families::Blueprint& plan, at::ScalarType dtype) {
  auto out = std::make_shared<DebertaPositions>();
  out->config_ = c.deberta;
  out->table_ = add_embedding(encoder, plan, "rel_embeddings", dtype);
  out->norm_ = add_norm(encoder, c, plan, "LayerNorm", dtype);
  const bool used = c.deberta.content_to_position || c.deberta.position_to_content;
  return out->table_ && used ? out : nullptr;
}

at::Tensor DebertaPositions::of(BertLayout& layout) {
  auto rows = distance_rows(layout.rows->longest(), config_.span(), config_.buckets, config_.max_distance);
  const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
  const std::int64_t first = *least, end = *most + 1;
  for (auto& row : rows) row -= first;
  layout.distance_rows = std::make_shared<const std::vector<std::int64_t>>(std::move(rows));
  layout.position_keys = at::arange(first, end, at::kLong);
  const auto positions = (*table_)(layout.position_keys);
  return norm_ ? (*norm_)(positions) : positions;
}

void collect_tensors(DebertaConvolutionInput& in, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&in.embedded, &in.hidden});
}

DebertaConvolution::DebertaConvolution(const families::BertConfig& c, const families::Blueprint& plan,
                                       at::ScalarType dtype)
    : groups_(c.deberta.conv_groups), activation_(c.deberta.conv_activation) {
  auto conv = register_module("conv", std::make_shared<nn::Container>("Conv1d"));
  for (const auto& parameter : plan.at("conv").parameters) {
    auto& place = parameter.name == "weight" ? weight_ : bias_;
    place = conv->register_parameter(parameter.name, nn::make_parameter(parameter.shape, dtype));
  }
  norm_ = add_norm(*this, c, plan, "LayerNorm", dtype);
  dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(c.hidden_dropout));
}

namespace {

/// [T, 1]: 1 where the row of a token has one so many places behind it.
at::Tensor has_neighbour(const nn::SequenceRows& rows, std::int64_t offset, const at::Tensor& like) {
  const auto out = at::empty({like.size(0), 1}, at::TensorOptions().dtype(at::kFloat));
  auto* to = out.mutable_data_ptr<float>();
  for (std::int64_t s = 0; s < rows.count(); ++s) {
    const std::int64_t begin = rows.begin[static_cast<std::size_t>(s)], n = rows.length[static_cast<std::size_t>(s)];
    for (std::int64_t i = 0; i < n; ++i) to[begin + i] = i + offset >= 0 && i + offset < n ? 1.0f : 0.0f;
  }
  return tensor::beside(out.to(like.scalar_type()), like);
}

/// Row t of the result is row t + offset of x, or zeros.
at::Tensor shifted(const at::Tensor& x, std::int64_t offset) {
  if (offset == 0) return x;
  const auto kept = x.size(0) - std::abs(offset);
  const auto none = at::zeros({std::abs(offset), x.size(1)}, x.options());
  return offset > 0 ? at::cat({x.narrow(0, offset, kept), none}) : at::cat({none, x.narrow(0, 0, kept)});
}

}  // namespace

at::Tensor DebertaConvolution::convolved(const at::Tensor& x, const nn::SequenceRows& rows) const {
  const std::int64_t tokens = x.size(0), kernel = weight_.size(2), inputs = weight_.size(1);
  const auto matrix = weight_.view({groups_, -1, inputs, kernel}).permute({0, 2, 3, 1}).flatten(2);
  const auto products = nn::matmul(x.view({tokens, groups_, inputs}).transpose(0, 1), matrix)  // [G, T, kernel * D / G]
                            .view({groups_, tokens, kernel, -1});
  at::Tensor sum = bias_;
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    const std::int64_t offset = tap - kernel / 2;
    if (std::abs(offset) >= rows.longest()) continue;
    const auto part = products.select(2, tap).transpose(0, 1).reshape({tokens, -1});
    sum = sum + (offset == 0 ? part : shifted(part, offset) * has_neighbour(rows, offset, part));
  }
  return sum;
}

at::Tensor DebertaConvolution::forward_impl(DebertaConvolutionInput in) {
  const auto& visible = in.layout->visible;
  auto out = convolved(in.embedded, *in.layout->rows);
  if (visible.defined()) out = out.masked_fill(visible.eq(0).unsqueeze(1), 0.0);
  out = (*norm_)(nn::plus(in.hidden, nn::activate((*dropout_)(out), activation_)));
  return visible.defined() ? out * visible.unsqueeze(1).to(out.scalar_type()) : out;
}

}  // namespace tessera::models
