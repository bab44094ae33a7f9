#include "peft/methods/miss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>

#include "nn/ops/dropout_ops.h"
#include "nn/ops/matmul.h"
#include "peft/methods/delta_product.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

/// W b_i + b_i by blocks; w: [out, in], b: [out / r, r, r].
at::Tensor bat_delta(const at::Tensor& w, const at::Tensor& b) {
  const auto r = b.size(2), out = w.size(0), in = w.size(1);
  const auto blocks = w.to(b.scalar_type()).reshape({out / r, r, in / r, r}).permute({2, 0, 1, 3});
  return (nn::matmul(blocks, b) + b).permute({1, 2, 0, 3}).reshape({out, in});
}

}  // namespace

void Miss::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.number("miss_dropout", miss_dropout);
  keys.integer("mini_r", mini_r);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.flag_or_word("init_weights", init_weights);
  keys.text("bias", bias);
}

void Miss::check() const {
  TensorMethod::check();
  require_positive("r", r);
  require_positive("mini_r", mini_r);
  require_probability("miss_dropout", miss_dropout);
  if (init_weights != "true" && init_weights != "false" && init_weights != "bat" && init_weights != "mini")
    throw ConfigError("init_weights of MISS is one of true, false, bat, mini; found '" + init_weights + "'",
                      "init_weights");
}

std::vector<AddedTensor> Miss::added(const LayerSizes& layer) const {
  const auto refuse = [&](const std::string& key, const std::string& why) {
    throw ConfigError(key + ": " + why + " '" + layer.name + "' (" + std::to_string(layer.out) + " x " +
                          std::to_string(layer.in) + ")",
                      key);
  };
  if (r > layer.in) refuse("r", std::to_string(r) + " is more than the inputs of");
  if (init_weights == "bat") {
    if (layer.in % r != 0 || layer.out % r != 0) refuse("r", std::to_string(r) + " does not divide both sides of");
    return {{"miss_block.default", {layer.out / r, r, r}, zeros()}};
  }
  if (init_weights == "mini") {
    if (layer.out % mini_r != 0) refuse("mini_r", std::to_string(mini_r) + " does not divide the outputs of");
    return {{"miss_block.default", {r, mini_r}, zeros()}};
  }
  return {{"miss_block.default", {r, layer.out}, init_weights == "true" ? zeros() : kaiming_uniform()}};
}

at::Tensor Miss::block(const LayerSizes& sizes, const at::Tensor& t) const {
  return init_weights == "mini" ? t.repeat({1, sizes.out / mini_r}) : t;
}

at::Tensor Miss::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  if (init_weights == "bat") {
    const auto weight = layer.handle();
    return delta_product(x, weight, layer.bias, t, [weight](const Tensors& made_of) {
      return bat_delta(weight.dequantise(made_of[0].scalar_type()).detach(), made_of[0]);
    });
  }
  auto rows = x.to(t[0].scalar_type()).reshape({-1, sizes.in});
  if (layer.is_training() && miss_dropout > 0) rows = nn::dropout(rows, miss_dropout);
  const auto missing = (r - sizes.in % r) % r;
  if (missing > 0) rows = at::constant_pad_nd(rows, {0, missing});
  const auto folded = rows.view({rows.size(0), -1, r}).sum(1);
  const auto y = layer.product(x);
  return (y + nn::matmul(folded, block(sizes, t[0])).view(y.sizes())).to(y.scalar_type());
}

at::Tensor Miss::merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const {
  if (init_weights == "bat") return w + bat_delta(w, t[0]);
  return w + block(sizes, t[0]).repeat({(sizes.in + r - 1) / r, 1}).narrow(0, 0, sizes.in).t();
}

}  // namespace tessera::peft
