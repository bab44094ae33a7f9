#include "peft/methods/gralora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>

#include <cmath>

#include "tessera/base/error.h"

namespace tessera::peft {

void GraLora::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.integer("hybrid_r", hybrid_r);
  bind_targets(keys);
  keys.whole_number("alpha", alpha);
  keys.number("gralora_dropout", gralora_dropout);
  keys.integer("gralora_k", gralora_k);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
}

void GraLora::check() const {
  FactorMethod::check();
  require_positive("r", r);
  require_positive("gralora_k", gralora_k);
  require_probability("gralora_dropout", gralora_dropout);
  if (hybrid_r < 0) throw ConfigError("hybrid_r must not be negative, found " + std::to_string(hybrid_r), "hybrid_r");
  if (r % gralora_k != 0)
    throw ConfigError(
        "r must be a multiple of gralora_k, found " + std::to_string(r) + " and " + std::to_string(gralora_k),
        "gralora_k");
}

std::vector<AddedTensor> GraLora::added(const LayerSizes& layer) const {
  if (layer.in % gralora_k != 0 || layer.out % gralora_k != 0)
    throw ConfigError("gralora_k is " + std::to_string(gralora_k) + ", but '" + layer.name + "' is " +
                          std::to_string(layer.out) + " by " + std::to_string(layer.in) +
                          "; choose a divisor of both sides",
                      "gralora_k");
  const auto bounded_by = [](std::int64_t inputs) { return uniform(1 / std::sqrt(static_cast<double>(inputs))); };
  const auto in = layer.in / gralora_k, out = layer.out / gralora_k;
  std::vector<AddedTensor> tensors = {
      {"gralora_A.default", {gralora_k, in, r}, bounded_by(in)},
      {"gralora_B.default", {gralora_k, r, out}, init_weights ? zeros() : bounded_by(r)}};
  if (hybrid_r == 0) return tensors;
  tensors.push_back({"gralora_A_general.default.weight", {hybrid_r, layer.in}, kaiming_uniform()});
  tensors.push_back(
      {"gralora_B_general.default.weight", {layer.out, hybrid_r}, init_weights ? zeros() : kaiming_uniform()});
  return tensors;
}

// Input block n and output block j meet in r / k of the ranks: A[n, :, (j, s)] and B[j, (n, s), :]. The factors' ranks
// are all (n, j, s), and zero outside their blocks.
DeltaFactors GraLora::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto k = gralora_k, each = r / k;
  const auto own = at::eye(k, t[0].options());
  const auto a = t[0].transpose(1, 2).unsqueeze(2) * own.view({k, 1, k, 1});    // [n, (j, s), n, in / k]
  const auto b = t[1].view({k, k, each, sizes.out / k}).permute({0, 3, 1, 2});  // [j, out / k, n, s]
  const auto placed = b.unsqueeze(3) * own.view({k, 1, 1, k, 1});               // [j, out / k, n, j, s]
  DeltaFactors made{a.reshape({k * r, sizes.in}), placed.reshape({sizes.out, k * r})};
  if (hybrid_r > 0) made = {at::cat({made.a, t[2]}, 0), at::cat({made.b, t[3]}, 1)};
  made.scaling = alpha / static_cast<double>(r + hybrid_r);
  made.dropout = gralora_dropout;
  return made;
}

}  // namespace tessera::peft
