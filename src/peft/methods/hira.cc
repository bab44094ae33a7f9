#include "peft/methods/hira.h"

#include <ATen/TensorOperators.h>

#include "nn/ops/matmul.h"
#include "tessera/base/error.h"

namespace tessera::peft {

void Hira::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.number("hira_dropout", hira_dropout);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.flag_or_word("init_weights", init_weights);
  keys.pattern("rank_pattern", rank_pattern);
}

void Hira::check() const {
  TensorMethod::check();
  require_positive("r", r);
  require_probability("hira_dropout", hira_dropout);
  if (init_weights != "true" && init_weights != "false" && init_weights != "gaussian")
    throw ConfigError("init_weights of HIRA is one of true, false, gaussian; found '" + init_weights + "'",
                      "init_weights");
}

void Hira::check_new() const {
  if (!rank_pattern.empty())
    throw ConfigError(
        "rank_pattern of HIRA has no effect on dense layers in PEFT 0.21.2, all of which get r; leave it out",
        "rank_pattern");
}

std::vector<AddedTensor> Hira::added(const LayerSizes& layer) const {
  const bool random = init_weights == "false";
  const auto a = random ? normal(1) : init_weights == "true" ? kaiming_uniform() : normal(1.0 / static_cast<double>(r));
  return {{"hira_A.default", {r, layer.in}, a}, {"hira_B.default", {layer.out, r}, random ? normal(1) : zeros()}};
}

at::Tensor Hira::output(const nn::Linear& layer, const LayerSizes&, const at::Tensor& x, const Tensors& t) const {
  const auto weight = layer.handle();
  const auto make = [weight](const Tensors& made_of) {
    const auto factors = nn::matmul(made_of[1], made_of[0]);
    return factors * weight.dequantise(factors.scalar_type()).detach().to(factors.scalar_type());
  };
  return delta_product(x, weight, layer.bias, t, make, layer.is_training() ? hira_dropout : 0);
}

at::Tensor Hira::merged_weight(const LayerSizes&, const at::Tensor& w, const Tensors& t) const {
  return w + w * nn::matmul(t[1], t[0]);
}

}  // namespace tessera::peft
