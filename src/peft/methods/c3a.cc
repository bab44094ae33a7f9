#include "peft/methods/c3a.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <cmath>

#include "nn/ops/circulant_delta.h"
#include "nn/ops/device.h"
#include "peft/targets.h"
#include "tessera/base/error.h"

namespace tessera::peft {

void C3a::bind(ConfigKeys& keys) {
  keys.integer("block_size", block_size);
  bind_targets(keys);
  keys.text("bias", bias);
  keys.pattern("block_size_pattern", block_size_pattern);
  keys.flag_or_word("init_weights", init_weights);
}

void C3a::check() const {
  DeltaMethod::check();
  require_positive("block_size", block_size);
  for (const auto& [pattern, size] : block_size_pattern) require_positive("block_size_pattern", size);
  for (const char* known : {"true", "false", "gaussian", "kaiming_uniform", "xavier_uniform"})
    if (init_weights == known) return;
  throw ConfigError("init_weights of C3A is one of true, false, gaussian, kaiming_uniform, xavier_uniform; found '" +
                        init_weights + "'",
                    "init_weights");
}

std::vector<std::string> C3a::default_targets(const models::ModelConfig& family) const {
  return feed_forward_of_gpt2(family);
}

std::int64_t C3a::block_of(const LayerSizes& layer) const {
  const auto size = by_dotted_end(layer.name, block_size_pattern, block_size, "block_size_pattern");
  if (layer.in % size != 0 || layer.out % size != 0)
    throw ConfigError("block_size is " + std::to_string(size) + ", but '" + layer.name + "' is " +
                          std::to_string(layer.out) + " by " + std::to_string(layer.in) +
                          "; choose a divisor of both sides (block_size_pattern: for some layers)",
                      "block_size");
  return size;
}

Draw C3a::draw_for(const LayerSizes& layer) const {
  const auto in = static_cast<double>(layer.in), out = static_cast<double>(layer.out);
  if (init_weights == "true") return zeros();
  if (init_weights == "gaussian") return normal(1);
  return uniform(init_weights == "kaiming_uniform" ? std::sqrt(1 / in) : std::sqrt(6 / (in + out)));
}

std::vector<AddedTensor> C3a::added(const LayerSizes& layer) const {
  const auto size = block_of(layer);
  return {{"c3a_kernel.default", {layer.out / size, layer.in / size, size}, draw_for(layer)}};
}

at::Tensor C3a::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const {
  const auto block = t[0].size(2);
  if (!nn::has_kernels(x) || !nn::kernels::PanelFourier::takes(block)) return DeltaMethod::output(layer, sizes, x, t);
  return nn::panel_product(x, layer.handle(), layer.bias, t[0],
                           c10::make_intrusive<nn::CirculantDelta>(block, 1 / static_cast<double>(sizes.in)));
}

// Row i of a block, column j: number (j - i) mod size of its first row.
at::Tensor C3a::delta(const LayerSizes& sizes, const Tensors& t) const {
  const auto size = t[0].size(2), rows = t[0].size(0), columns = t[0].size(1);
  const auto place = at::arange(size, t[0].options().dtype(at::kLong));
  const auto turned = (place.unsqueeze(0) - place.unsqueeze(1)).remainder(size).view(-1);
  const auto blocks = t[0].index_select(2, turned).view({rows, columns, size, size}).transpose(1, 2);
  return blocks.reshape({sizes.out, sizes.in}) / static_cast<double>(sizes.in);
}

}  // namespace tessera::peft
