#include "models/causal_lm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "base/scoped_value.h"
#include "models/batch_part.h"
#include "models/build_parts.h"
#include "models/decoder_cache.h"
#include "nn/layers/container.h"
#include "nn/ops/noise.h"
#include "tensor/device.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::models {
namespace {

// Places of the keys for linear biases: within their sequence, or among the visible tokens of their row.
at::Tensor key_places(const DecoderBatch& batch, const at::Tensor& attention_mask) {
  if (batch.packed.visible.defined()) {
    const auto mask = attention_mask.ne(0).to(at::kLong);
    return ((mask.cumsum(1) - 1) * mask).flatten().to(at::kFloat);
  }
  const auto& rows = *batch.packed.rows;
  auto out = at::empty({batch.positions.size(0)}, at::TensorOptions().dtype(at::kFloat));
  float* p = out.mutable_data_ptr<float>();
  for (std::int64_t s = 0; s < rows.count(); ++s) {
    for (std::int64_t i = 0; i < rows.length[s]; ++i) p[rows.begin[s] + i] = static_cast<float>(i);
  }
  return tensor::beside(out, batch.positions);
}

/// How far the noise of each token's embedding goes, [T] float32 on the CPU; a row's padding does not count as length.
at::Tensor noise_range(const ModelInput& in, const DecoderBatch& batch, std::int64_t size) {
  const auto& rows = *batch.packed.rows;
  const auto visible = tensor::on_host(batch.packed.visible);
  auto lengths = at::empty({batch.positions.size(0)}, at::TensorOptions().dtype(at::kFloat));
  for (std::int64_t s = 0; s < rows.count(); ++s) {
    const auto seen = visible.defined() ? visible.narrow(0, rows.begin[s], rows.length[s]).sum().item<double>()
                                        : static_cast<double>(rows.length[s]);
    lengths.narrow(0, rows.begin[s], rows.length[s]).fill_(std::max(seen, 1.0));
  }
  return in.embedding_noise * at::rsqrt(lengths * static_cast<double>(size));
}

/// The rows' keys come after those of a prefix of so many tokens, where `positions` lie.
void put_in_front(DecoderLayout& layout, std::int64_t prefix, const at::Tensor& positions) {
  layout.prefix = behind_prefix(*layout.rows, prefix);
  layout.prefix.index = tensor::beside(layout.prefix.index, positions);
  layout.key_rows = layout.prefix.rows;
  layout.visible = layout.prefix.visible(layout.visible);
  if (layout.key_position.defined()) {
    const auto first = at::arange(prefix, layout.key_position.options());
    layout.key_position = layout.prefix.join(first, layout.key_position + prefix);
  }
}

/// Upstream's factors are tensors of the dtype of what they multiply.
double rounded_to(double value, at::ScalarType dtype) {
  const auto x = static_cast<float>(value);
  if (dtype == at::kBFloat16) return static_cast<float>(at::BFloat16(x));
  if (dtype == at::kHalf) return static_cast<float>(at::Half(x));
  return value;
}

}  // namespace

at::Tensor linear_bias_slopes(std::int64_t heads) {
  const auto power = [](std::int64_t count) {
    return static_cast<float>(std::exp2(-std::exp2(-(std::log2(static_cast<double>(count)) - 3))));
  };
  std::int64_t closest = 1;
  while (2 * closest <= heads) closest *= 2;
  std::vector<float> slopes;
  for (std::int64_t i = 1; i <= closest; ++i) slopes.push_back(std::pow(power(closest), static_cast<float>(i)));
  for (std::int64_t i = 0; i < heads - closest; ++i)
    slopes.push_back(std::pow(power(2 * closest), static_cast<float>(2 * i + 1)));
  return at::tensor(slopes, at::TensorOptions().dtype(at::kFloat));
}

CausalLm::CausalLm(families::DecoderConfig config, at::ScalarType dtype)
    : config_(std::move(config)), rotary_(config_.rotary) {
  if (config_.window_rotary) window_rotary_.emplace(*config_.window_rotary);
  if (config_.position == families::PositionKind::kLinearBias) slopes_ = linear_bias_slopes(config_.num_heads);
  const auto plan = families::blueprint(config_);
  const auto base = std::make_shared<nn::Container>(config_.classes.base);
  build_base(*register_at(*this, config_.names.base, config_.classes.base, base), plan.at(config_.names.base), dtype);
  if (config_.classifier) return;  // the head is the derived class's
  if (!config_.tied) {
    lm_head_ = add_linear(*this, plan, config_.names.head, dtype);
  } else if (config_.head_bias) {
    auto holder = std::make_shared<nn::Container>("Linear");
    head_bias_ = holder->register_parameter("bias", nn::make_parameter({config_.vocab_size}, dtype));
    register_module(config_.names.head, std::move(holder));
  }
}

void CausalLm::build_base(torch::nn::Module& base, const families::Blueprint& plan, at::ScalarType dtype) {
  const auto& c = config_;
  embedding_ = add_embedding(base, plan, c.names.embedding, dtype, c.padding_idx);
  positions_ = add_embedding(base, plan, c.names.positions, dtype);
  embedding_norm_ = add_norm(base, c, plan, c.names.embedding_norm, dtype);
  project_in_ = add_linear(base, plan, c.names.project_in, dtype);
  project_out_ = add_linear(base, plan, c.names.project_out, dtype);
  dropout_ = std::make_shared<nn::Dropout>(c.embedding_dropout);
  if (c.embedding_dropout > 0) base.register_module("drop", dropout_);
  auto list = std::make_shared<nn::Container>("ModuleList");
  for (const auto& part : plan.at(c.names.layers).parts) {
    const auto layer = static_cast<std::int64_t>(layers_.size());
    layers_.push_back(list->register_module(part.name, std::make_shared<DecoderLayer>(c, part, layer, dtype)));
    order_.push_back(order_.size());
  }
  base.register_module(c.names.layers, list);
  final_norm_ = add_norm(base, c, plan, c.names.final_norm, dtype);
}

bool CausalLm::untie_head() {
  if (lm_head_ || head_bias_.defined()) return false;
  lm_head_ = register_module(config_.names.head, make_untied_head(embedding_->weight));
  config_.tied = false;
  return true;
}

std::shared_ptr<Cache> CausalLm::make_cache() const {
  return std::make_shared<DecoderCache>(static_cast<std::int64_t>(order_.size()), config_.reread_beyond);
}

at::Tensor CausalLm::embed(const at::Tensor& ids, const at::Tensor& positions, const nn::GradientSlot& slot,
                           const at::Tensor& noise) {
  const bool plain = !embedding_->hooked() && !embedding_->adapter();
  auto x = plain ? nn::lookup(embedding_->weight, ids, slot, config_.padding_idx) : (*embedding_)(ids);
  const auto add_noise = [&] {
    if (noise.defined()) x = x + nn::uniform_noise(x, noise);
  };
  if (!config_.embedding_scales_itself) add_noise();
  if (const double scale = config_.embedding_scale; scale != 1.0)
    x = x * (config_.embedding_scale_in_dtype ? rounded_to(scale, x.scalar_type()) : scale);
  if (config_.embedding_scales_itself) add_noise();
  if (project_in_) x = (*project_in_)(x);
  if (positions_) {
    check_positions(positions);
    x = x + (*positions_)(tensor::beside(tensor::on_host(positions) + config_.position_offset, positions));
  }
  if (embedding_norm_) x = (*embedding_norm_)(x);
  return (*dropout_)(x);
}

void CausalLm::check_positions(const at::Tensor& positions) const {
  const auto last = positions.numel() == 0 ? 0 : tensor::on_host(positions).max().item<std::int64_t>();
  if (last >= config_.position_rows) {
    throw DataError("a row reaches position " + std::to_string(last) + ", but this model has learned " +
                    std::to_string(config_.position_rows) + " positions only; shorten the rows");
  }
}

void CausalLm::place(DecoderLayout& layout, const at::Tensor& positions, std::int64_t length,
                     const nn::SequenceRows* documents) {
  if (config_.position == families::PositionKind::kRotary) layout.rotary = rotary_.table(positions, length, documents);
  layout.window_rotary = window_rotary_ ? window_rotary_->table(positions, length, documents) : layout.rotary;
}

std::shared_ptr<const DecoderLayout> CausalLm::layout_of(const DecoderBatch& batch, const at::Tensor& attention_mask,
                                                         std::int64_t prefix) {
  DecoderLayout layout;
  layout.rows = layout.key_rows = batch.packed.rows;
  layout.visible = batch.packed.visible;
  if (slopes_.defined()) {
    layout.slopes = tensor::beside(slopes_, batch.positions);
    layout.key_position = key_places(batch, attention_mask);
  }
  place(layout, batch.positions, batch.length, batch.documents ? batch.packed.rows.get() : nullptr);
  if (prefix > 0) put_in_front(layout, prefix, batch.positions);
  return std::make_shared<const DecoderLayout>(std::move(layout));
}

CausalLm::Pass CausalLm::run_layers(at::Tensor hidden, const std::shared_ptr<const DecoderLayout>& layout,
                                    const PassOptions& options) {
  Pass pass;
  const bool want_hidden = options.want_hidden;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (want_hidden) pass.states.push_back(hidden);
    auto out = (*layers_[order_[i]])({hidden, layout, options.caches ? &(*options.caches)[i] : nullptr,
                                      PrefixRows::of_layer(options.prefix, i), static_cast<int>(i)});
    hidden = out.hidden;
    if (out.router_logits.defined()) pass.router_logits.push_back(out.router_logits);
  }
  pass.hidden = hidden;
  return pass;
}

at::Tensor CausalLm::finish(at::Tensor hidden) {
  if (final_norm_) hidden = (*final_norm_)(hidden);
  if (project_out_) hidden = (*project_out_)(hidden);
  return hidden;
}

CausalLm::Pass CausalLm::run(at::Tensor hidden, std::shared_ptr<const DecoderLayout> layout,
                             const PassOptions& options) {
  auto pass = run_layers(std::move(hidden), layout, options);
  pass.hidden = finish(pass.hidden);
  if (options.want_hidden) pass.states.push_back(pass.hidden);
  return pass;
}

ModelOutput CausalLm::step(const ModelInput& in) {
  auto& cache = dynamic_cast<DecoderCache&>(*in.cache);
  if (in.prefix.defined() && cache.empty()) cache.begin_with(in.prefix, in.input_ids.size(0));
  auto step = cache.begin(in.input_ids, in.attention_mask, in.position_ids);
  if (slopes_.defined()) {
    step.layout.slopes = tensor::beside(slopes_, step.positions);
    step.layout.key_position = at::arange(cache.capacity(), step.positions.options().dtype(at::kFloat))
                                   .repeat({step.layout.cache_rows / cache.capacity()});
  }
  place(step.layout, step.positions, tensor::on_host(step.positions).max().item<std::int64_t>() + 1, nullptr);
  const auto ids = in.input_ids.flatten().index_select(0, step.tokens);
  const auto pass = run(embed(ids, step.positions, {}, {}), std::make_shared<const DecoderLayout>(step.layout),
                        {.caches = &cache.layers()});
  std::vector<std::int64_t> last;
  for (std::int64_t r = 0; r < step.layout.rows->count(); ++r)
    last.push_back(step.layout.rows->begin[r] + step.layout.rows->length[r] - 1);
  ModelOutput out;
  const auto places = tensor::beside(at::tensor(last, at::TensorOptions().dtype(at::kLong)), pass.hidden);
  out.logits = logits(pass.hidden.index_select(0, places)).unsqueeze(1);
  return out;
}

CausalLm::Pass CausalLm::decode(const ModelInput& in, const DecoderBatch& batch, const nn::GradientSlot& slot) {
  const auto prefix = in.prefix.defined() ? in.prefix.size(1) : 0;
  const auto layout = layout_of(batch, in.attention_mask, prefix);
  return run(embed_batch(in, batch, slot), layout, {.want_hidden = in.want_hidden, .prefix = in.prefix});
}

at::Tensor CausalLm::embed_batch(const ModelInput& in, const DecoderBatch& batch, const nn::GradientSlot& slot) {
  const bool noisy = in.embedding_noise > 0;
  return embed(batch.ids, batch.positions, slot, noisy ? noise_range(in, batch, config_.embedding_size) : at::Tensor());
}

// What each part goes through has the shapes that it has alone; only the layers' calls are one for all.
ModelOutput CausalLm::compute_parts(const ModelInput& in) {
  std::vector<DecoderBatch> batches;
  auto draws = tensor::random_state();
  draws.parts.clear();
  for (const auto& part : in.parts) {
    if (!part.row_ids.defined() || !part.labels.defined()) throw DataError("parts of a batch need row_ids and labels");
    const auto& batch = batches.emplace_back(make_decoder_batch(part, config_.positions_count_visible));
    const auto keys = token_keys(part.row_ids, part.attention_mask, part.input_ids.size(0), part.input_ids.size(1));
    auto& stream = draws.parts.emplace_back(tensor::stream_of(part.seed));
    stream.position = part.first_draw;
    stream.rows = batch.packed.pack(keys).contiguous();
  }
  const ScopedValue<tensor::RandomState> scope(tensor::random_state(), std::move(draws));
  DecoderLayout layout;
  std::vector<at::Tensor> embedded;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const BatchPart part(i);
    layout.parts.push_back(layout_of(batches[i], in.parts[i].attention_mask, 0));
    embedded.push_back(embed_batch(in.parts[i], batches[i], {}));
    layout.part_tokens.push_back(embedded.back().size(0));
  }
  const auto all = run_layers(at::cat(embedded), std::make_shared<const DecoderLayout>(layout), {});
  const auto parts_of = [&](const at::Tensor& t) { return t.split_with_sizes(layout.part_tokens); };
  const auto hidden = parts_of(all.hidden);
  ModelOutput sum;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const BatchPart part(i);
    Pass pass{finish(hidden[i]), {}, {}};
    for (const auto& logits : all.router_logits) pass.router_logits.push_back(parts_of(logits)[i]);
    ModelOutput out;
    loss(in.parts[i], batches[i], pass, {}, out);
    sum.part_losses.push_back(out.loss.detach());
    sum.loss = sum.loss.defined() ? sum.loss + out.loss : out.loss;
  }
  return sum;
}

ModelOutput CausalLm::compute(ModelInput in) {
  if (in.cache) return step(in);
  if (!in.parts.empty()) return compute_parts(in);
  const auto batch = make_decoder_batch(in, config_.positions_count_visible);
  const auto keys = token_keys(in.row_ids, in.attention_mask, in.input_ids.size(0), in.input_ids.size(1));
  const tensor::PassScope draws(keys.defined() ? batch.packed.pack(keys) : keys, in.first_draw);
  const bool shares = config_.tied && loss_is_fused(in) && !embedding_->adapter();
  const auto slot = shares ? c10::make_intrusive<nn::SharedGradient>() : nn::GradientSlot();
  const auto pass = decode(in, batch, slot);
  ModelOutput out;
  for (const auto& state : pass.states) out.hidden.push_back(batch.packed.unpack(state));
  if (in.labels.defined() && in.token_scores != ModelInput::TokenScores::kNone) {
    score(in, batch, pass, slot, out);
  } else if (in.labels.defined()) {
    loss(in, batch, pass, slot, out);
  } else if (in.want_logits) {
    out.logits = batch.packed.unpack(logits(pass.hidden));
  }
  return out;
}

}  // namespace tessera::models
