#include "peft/methods/lycoris.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/kron.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "base/kronecker_sides.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/matmul.h"
#include "peft/targets.h"
#include "tessera/base/error.h"

namespace tessera::peft {

void LycorisMethod::bind_common(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.whole_number("alpha", alpha);
  keys.number("rank_dropout", rank_dropout);
  keys.number("module_dropout", module_dropout);
  keys.pattern("rank_pattern", rank_pattern);
  keys.pattern("alpha_pattern", alpha_pattern);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.ignored("use_effective_conv2d", false);  // of convolutions
}

void LycorisMethod::check() const {
  DeltaMethod::check();
  require_positive("r", r);
  require_probability("rank_dropout", rank_dropout);
  require_probability("module_dropout", module_dropout);
}

std::int64_t LycorisMethod::rank_of(const LayerSizes& layer) const {
  const auto rank = by_pattern(layer.name, rank_pattern, r, "rank_pattern");
  require_positive("rank_pattern", rank);
  return rank;
}

double LycorisMethod::scaling_of(const LayerSizes& layer) const {
  return by_pattern(layer.name, alpha_pattern, alpha, "alpha_pattern") / static_cast<double>(rank_of(layer));
}

at::Tensor LycorisMethod::delta_mask(const LayerSizes& sizes) const {
  if (rank_dropout == 0 && module_dropout == 0) return {};
  const auto kept = [](std::int64_t count, double p) {
    return nn::dropout(at::ones({1, count}), p).ne(0).to(at::kFloat).view({count, 1});
  };
  auto mask = kept(1, module_dropout);
  if (rank_dropout > 0) {
    auto rows = kept(sizes.out, rank_dropout);
    if (scales_kept_rows()) rows = rows / rows.mean();
    mask = mask * rows;
  }
  return mask;
}

void LoHa::bind(ConfigKeys& keys) {
  bind_common(keys);
  keys.flag("init_weights", init_weights);
}

std::vector<AddedTensor> LoHa::added(const LayerSizes& layer) const {
  const auto rank = rank_of(layer);
  return {{"hada_w1_a.default", {layer.out, rank}, kaiming_uniform()},
          {"hada_w1_b.default", {rank, layer.in}, kaiming_uniform()},
          {"hada_w2_a.default", {layer.out, rank}, kaiming_uniform()},
          {"hada_w2_b.default", {rank, layer.in}, init_weights ? zeros() : kaiming_uniform()}};
}

at::Tensor LoHa::delta(const LayerSizes& sizes, const Tensors& t) const {
  return nn::matmul(t[0], t[1]) * nn::matmul(t[2], t[3]) * scaling_of(sizes);
}

DeltaFactors LoHa::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto a = (t[1].unsqueeze(1) * t[3].unsqueeze(0)).flatten(0, 1);
  const auto b = (t[0].unsqueeze(2) * t[2].unsqueeze(1)).flatten(1);
  return {a, b, scaling_of(sizes)};
}

void LoKr::bind(ConfigKeys& keys) {
  bind_common(keys);
  keys.flag("decompose_both", decompose_both);
  keys.integer("decompose_factor", decompose_factor);
  keys.flag("rank_dropout_scale", rank_dropout_scale);
  keys.flag_or_word("init_weights", init_weights);
}

void LoKr::check() const {
  LycorisMethod::check();
  if (init_weights != "true" && init_weights != "false" && init_weights != "lycoris")
    throw ConfigError("init_weights of LOKR is one of true, false, lycoris; found '" + init_weights + "'",
                      "init_weights");
  if (decompose_factor != -1 && decompose_factor <= 0)
    throw ConfigError("decompose_factor is -1 or positive, found " + std::to_string(decompose_factor),
                      "decompose_factor");
}

LoKr::Shape LoKr::shape_of(const LayerSizes& layer) const {
  const auto rank = rank_of(layer);
  const auto [in_1, in_2] = kronecker_sides(layer.in, decompose_factor);
  const auto [out_1, out_2] = kronecker_sides(layer.out, decompose_factor);
  return {
      out_1, out_2, in_1, in_2, decompose_both && 2 * rank < std::max(out_1, in_1), 2 * rank < std::max(out_2, in_2)};
}

std::vector<AddedTensor> LoKr::added(const LayerSizes& layer) const {
  const auto s = shape_of(layer);
  const auto rank = rank_of(layer);
  const auto first = init_weights == "true" ? zeros() : kaiming_uniform();
  const auto last = init_weights == "lycoris" ? zeros() : kaiming_uniform();
  std::vector<AddedTensor> out;
  if (s.split_1) {
    out.push_back({"lokr_w1_a.default", {s.out_1, rank}, first});
    out.push_back({"lokr_w1_b.default", {rank, s.in_1}, kaiming_uniform()});
  } else {
    out.push_back({"lokr_w1.default", {s.out_1, s.in_1}, first});
  }
  if (s.split_2) {
    out.push_back({"lokr_w2_a.default", {s.out_2, rank}, kaiming_uniform()});
    out.push_back({"lokr_w2_b.default", {rank, s.in_2}, last});
  } else {
    out.push_back({"lokr_w2.default", {s.out_2, s.in_2}, last});
  }
  return out;
}

std::pair<at::Tensor, at::Tensor> LoKr::sides(const LayerSizes& sizes, const Tensors& t) const {
  const auto s = shape_of(sizes);
  const std::size_t second = s.split_1 ? 2 : 1;
  return {s.split_1 ? nn::matmul(t[0], t[1]) : t[0], s.split_2 ? nn::matmul(t[second], t[second + 1]) : t[second]};
}

at::Tensor LoKr::delta(const LayerSizes& sizes, const Tensors& t) const {
  const auto [w1, w2] = sides(sizes, t);
  return at::kron(w1, w2) * scaling_of(sizes);
}

at::Tensor LoKr::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  const auto mask = layer.is_training() ? delta_mask(sizes) : at::Tensor();
  const auto gain =
      nn::remade(x.reshape({-1, sizes.in}), t, [this, sizes, mask](const at::Tensor& kept, const Tensors& made_of) {
        const auto s = shape_of(sizes);
        const auto [w1, w2] = sides(sizes, made_of);
        const auto rows = kept.to(w1.scalar_type()).reshape({-1, s.in_2});
        const auto inner = nn::matmul(rows, w2.t()).view({-1, s.in_1, s.out_2});
        const auto all = nn::matmul(w1 * scaling_of(sizes), inner).view({-1, sizes.out});
        return mask.defined() ? all * mask.flatten().to(all.scalar_type()) : all;
      });
  const auto y = layer.product(x);
  return (y + gain.view(y.sizes())).to(y.scalar_type());
}

}  // namespace tessera::peft
