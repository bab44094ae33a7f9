#include "peft/methods/oft.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "nn/ops/block_product.h"
#include "peft/methods/block_dropout.h"
#include "peft/methods/cayley.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

/// The divisor of `features` nearest to `wanted`, the lower of two; PEFT's adjust_oft_parameters().
std::int64_t near_divisor(std::int64_t features, std::int64_t wanted) {
  if (wanted >= features) return features;
  auto higher = wanted, lower = wanted;
  while (higher <= features && features % higher != 0) ++higher;
  while (lower > 1 && features % lower != 0) --lower;
  return wanted - lower <= higher - wanted ? lower : higher;
}

/// Scales the blocks whose norm is more than `bound` back to it.
at::Tensor projected(const at::Tensor& weight, double bound) {
  // A skew-symmetric matrix has each number twice.
  const auto norms = at::linalg_vector_norm(weight.to(at::kFloat), 2, at::IntArrayRef{1}, true) * std::sqrt(2.0);
  return at::where(norms.le(bound), weight, weight * (bound / norms).to(weight.scalar_type()));
}

}  // namespace

void Oft::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.integer("oft_block_size", oft_block_size);
  keys.number("module_dropout", module_dropout);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
  keys.flag("coft", coft);
  keys.number("eps", eps);
  keys.flag("block_share", block_share);
  keys.flag("use_cayley_neumann", use_cayley_neumann);
  keys.integer("num_cayley_neumann_terms", num_cayley_neumann_terms);
}

void Oft::check() const {
  TransformMethod::check();
  require_probability("module_dropout", module_dropout);
  if (coft && !(eps > 0))
    throw ConfigError("eps is how far a block may turn under coft: above 0, found " + std::to_string(eps), "eps");
  if (r < 0 || oft_block_size < 0 || (r == 0) == (oft_block_size == 0)) {
    throw ConfigError("one of r and oft_block_size is positive and the other 0 (found " + std::to_string(r) + " and " +
                          std::to_string(oft_block_size) + "): r * oft_block_size is the layer's input size",
                      "oft_block_size");
  }
  if (num_cayley_neumann_terms < 1)
    throw ConfigError("num_cayley_neumann_terms must be at least 1", "num_cayley_neumann_terms");
}

double Oft::radius(std::int64_t blocks) const {
  return eps / std::sqrt(static_cast<double>(blocks));
}

Oft::Blocks Oft::blocks_of(const LayerSizes& layer) const {
  if (oft_block_size > 0) {
    const auto size = near_divisor(layer.in, oft_block_size);
    return {layer.in / size, size};
  }
  const auto count = near_divisor(layer.in, r);
  return {count, layer.in / count};
}

std::vector<AddedTensor> Oft::added(const LayerSizes& layer) const {
  const auto [count, size] = blocks_of(layer);
  return {{kBlocks, {block_share ? 1 : count, size * (size - 1) / 2}, init_weights ? zeros() : normal(0.1)}};
}

at::Tensor Oft::rotations(const at::Tensor& weight, std::int64_t size) const {
  const auto q = skew_symmetric(weight, size);
  if (!use_cayley_neumann) return cayley(q);
  return cayley_neumann(q, num_cayley_neumann_terms);
}

at::Tensor Oft::transformed(const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  const auto [count, size] = blocks_of(sizes);
  // Upstream projects the stored parameter: the gradient is that of the projected one.
  const auto weight = coft ? t[0] + (projected(t[0].detach(), radius(t[0].size(0))) - t[0].detach()) : t[0];
  auto turn = rotations(weight, size);
  if (sizes.training && module_dropout > 0) turn = with_dropped_blocks(turn, module_dropout);
  return nn::block_product(x, turn.expand({count, size, size}));
}

}  // namespace tessera::peft
