#include "peft/methods/vera.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "peft/methods/torch_draws.h"

namespace tessera::peft {

void Vera::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  bind_targets(keys);
  keys.integer("projection_prng_key", projection_prng_key);
  keys.flag("save_projection", save_projection);
  keys.number("vera_dropout", vera_dropout);
  keys.number("d_initial", d_initial);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.flag("init_weights", init_weights);
}

void Vera::check() const {
  FactorMethod::check();
  require_positive("r", r);
  require_probability("vera_dropout", vera_dropout);
}

std::vector<AddedTensor> Vera::added(const LayerSizes& layer) const {
  return {{"vera_lambda_b.default", {layer.out}, init_weights ? zeros() : constant(1)},
          {"vera_lambda_d.default", {r}, init_weights ? constant(d_initial) : normal(1)}};
}

std::vector<AddedTensor> Vera::shared(const std::vector<LayerSizes>& layers) const {
  std::int64_t in = 0, out = 0;
  for (const auto& layer : layers) {
    in = std::max(in, layer.in);
    out = std::max(out, layer.out);
  }
  const auto draw = [=, this](bool wants_b) {
    return [=, this](const at::Tensor& t, tensor::RandomKey) {
      TorchDraws draws(projection_prng_key);
      const auto bound = [](std::int64_t fan) { return std::sqrt(3.0) * (std::sqrt(2.0) / std::sqrt(fan)); };
      const auto a = draws.uniform({r, in}, -bound(in), bound(in));
      t.copy_(wants_b ? draws.uniform({out, r}, -bound(r), bound(r)) : a);
    };
  };
  return {{"vera_A.default", {r, in}, draw(false), false}, {"vera_B.default", {out, r}, draw(true), false}};
}

std::vector<std::string> Vera::file_names(const std::string& parameter) const {
  const bool projection = parameter == "vera_A.default" || parameter == "vera_B.default";
  if (projection && !save_projection) return {};
  return FactorMethod::file_names(parameter);
}

nn::LowRank Vera::factors(const LayerSizes& sizes, const Tensors& t) const {
  const auto &b = t[0], &d = t[1];
  const auto a = t[2].narrow(1, 0, sizes.in), wide_b = t[3].narrow(0, 0, sizes.out);
  return {d.unsqueeze(1) * a, b.unsqueeze(1) * wide_b, 1.0, vera_dropout};
}

}  // namespace tessera::peft
