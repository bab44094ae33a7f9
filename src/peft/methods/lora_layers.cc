#include "peft/methods/lora_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "nn/ops/dropout_ops.h"
#include "nn/ops/lookup.h"
#include "nn/ops/matmul.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/init.h"

namespace tessera::peft {

LoraLinear::LoraLinear(const LoraShape& shape, std::shared_ptr<nn::Linear> a_in, std::shared_ptr<nn::Linear> b_in)
    : a(std::move(a_in)), b(std::move(b_in)), scaling_(shape.scaling), dropout_(shape.dropout) {
  if (dropout_ > 0)
    add_module("lora_dropout", "ModuleDict").register_module("default", std::make_shared<nn::Dropout>(dropout_));
  add_module("lora_A", "ModuleDict").register_module("default", a);
  add_module("lora_B", "ModuleDict").register_module("default", b);
  if (!shape.subtracts_start) return;
  const auto frozen = [&](const std::string& name, const at::Tensor& like) {
    return add_module(name, "ParameterDict")
        .register_parameter("default", nn::make_parameter(like.sizes(), at::kFloat), /*requires_grad=*/false);
  };
  start_a = frozen("lora_start_A", a->weight);
  start_b = frozen("lora_start_B", b->weight);
}

nn::LowRank LoraLinear::low_rank(const nn::Linear& layer) const {
  const double dropout = layer.is_training() ? dropout_ : 0.0;
  if (!start_a.defined()) return {a->weight, b->weight, scaling_, dropout};
  return {at::cat({a->weight, start_a}), at::cat({b->weight, start_b.neg()}, 1), scaling_, dropout};
}

std::optional<nn::LowRank> LoraLinear::plain_low_rank(const nn::Linear& layer) const {
  if (a->hooked() || b->hooked() || b->bias.defined() || start_a.defined()) return std::nullopt;
  return low_rank(layer);
}

at::Tensor LoraLinear::forward(const nn::Linear& layer, const at::Tensor& x) {
  const auto low = low_rank(layer);
  if (!a->hooked() && !b->hooked()) {
    auto bias = layer.bias;
    if (b->bias.defined()) bias = bias.defined() ? bias + b->bias * scaling_ : b->bias * scaling_;
    return nn::lora_linear(x, layer.handle(), bias, low);
  }
  const auto base = layer.product(x);
  const auto dropped = nn::dropout(x.to(low.a.scalar_type()), low.dropout);
  auto update = (*b)((*a)(dropped));
  if (start_a.defined()) update = update - nn::linear(nn::linear(dropped, start_a), start_b);
  return (base + update * scaling_).to(base.scalar_type());
}

LoraEmbedding::LoraEmbedding(const nn::Embedding& layer, const LoraShape& shape) : scaling_(shape.scaling) {
  const auto num = layer.weight.size(0), dim = layer.weight.size(1);
  a = add_module("lora_embedding_A", "ParameterDict")
          .register_parameter("default", nn::make_parameter({shape.rank, num}, at::kFloat));
  b = add_module("lora_embedding_B", "ParameterDict")
          .register_parameter("default", nn::make_parameter({dim, shape.rank}, at::kFloat));
}

LoraEmbedding::Rows LoraEmbedding::rows(const nn::Embedding& layer, const at::Tensor& ids) const {
  const auto base = layer.rows(ids);
  const auto update = nn::linear(nn::lookup(a.t(), ids, {}, layer.padding_idx()), b) * scaling_;
  return {base, base + update};
}

at::Tensor LoraEmbedding::forward(const nn::Embedding& layer, const at::Tensor& ids) {
  const auto [base, sum] = rows(layer, ids);
  return sum.to(base.scalar_type());
}

}  // namespace tessera::peft
