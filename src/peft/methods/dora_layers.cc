#include "peft/methods/dora_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include "nn/layers/container.h"
#include "nn/ops/dora.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

/// A factor whose weight the layer reads for its norms, so that it is never a unit.
class DoraFactor : public nn::Linear {
 public:
  using nn::Linear::Linear;
  bool may_be_unit() const override { return false; }
};

/// The parameter "default.weight" [size] below `module`.
at::Tensor add_magnitude(nn::AdapterModule& module, std::int64_t size) {
  auto inner = std::make_shared<nn::Container>("DoraLayer");
  auto magnitude = inner->register_parameter("weight", nn::make_parameter({size}, at::kFloat));
  module.register_module("default", inner);
  return magnitude;
}

}  // namespace

DoraLinear::DoraLinear(const nn::Linear& layer, const LoraShape& shape)
    : LoraLinear(shape, std::make_shared<DoraFactor>(layer.in_features(), shape.rank, false),
                 std::make_shared<DoraFactor>(shape.rank, layer.out_features(), false)),
      magnitude(add_magnitude(add_module("lora_magnitude_vector", "ModuleDict"), layer.out_features())) {}

at::Tensor DoraLinear::forward(const nn::Linear& layer, const at::Tensor& x) {
  if (!squares_.defined() || layer.weight.requires_grad()) squares_ = nn::squared_norms(layer.handle());
  return nn::dora_linear(x, layer.handle(), layer.bias, low_rank(layer), magnitude, squares_);
}

DoraEmbedding::DoraEmbedding(const nn::Embedding& layer, const LoraShape& shape)
    : LoraEmbedding(layer, shape),
      magnitude(add_magnitude(add_module("lora_magnitude_vector", "ModuleDict"), layer.weight.size(1))) {}

at::Tensor DoraEmbedding::forward(const nn::Embedding& layer, const at::Tensor& ids) {
  const auto [base, sum] = rows(layer, ids);
  if (!squares_.defined() || layer.weight.requires_grad()) squares_ = nn::squared_norms(layer.weight, 0);
  const auto table = layer.weight.detach();
  const auto wa = at::mm(a.detach().to(table.scalar_type()), table).t();
  return (sum * (magnitude / nn::adapted_norms(squares_, wa, a, b, scaling_))).to(base.scalar_type());
}

}  // namespace tessera::peft
