#include "tessera/nn/linear.h"

#include "nn/container.h"
#include "nn/dora.h"
#include "nn/dropout_ops.h"
#include "nn/gemm.h"
#include "nn/lora_linear.h"
#include "tessera/base/error.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/init.h"

namespace tessera::nn {

Linear::Linear(std::int64_t in_features, std::int64_t out_features, bool with_bias, at::ScalarType dtype,
               WeightLayout layout)
    : in_features_(in_features), out_features_(out_features), layout_(layout) {
  const bool out_in = layout == WeightLayout::kOutIn;
  weight = register_parameter(
      "weight", make_parameter({out_in ? out_features : in_features, out_in ? in_features : out_features}, dtype));
  if (with_bias) bias = register_parameter("bias", make_parameter({out_features}, dtype));
}

std::string Linear::class_name() const {
  if (adapter_) return "lora.Linear";
  return layout_ == WeightLayout::kInOut ? "Conv1D" : "Linear";
}

std::string Linear::extra_repr() const {
  if (layout_ == WeightLayout::kInOut)
    return "nf=" + std::to_string(out_features_) + ", nx=" + std::to_string(in_features_);
  return "in_features=" + std::to_string(in_features_) + ", out_features=" + std::to_string(out_features_) +
         ", bias=" + (bias.defined() ? "True" : "False");
}

void Linear::attach_adapter(const AdapterShape& shape) {
  TESSERA_CHECK(!adapter_, "a Linear takes one adapter");
  auto adapter = std::make_unique<LowRankAdapter>();
  adapter->a = std::make_shared<Linear>(in_features_, shape.rank, false);
  adapter->b = std::make_shared<Linear>(shape.rank, out_features_, false);
  adapter->a->read_by_parent_ = adapter->b->read_by_parent_ = shape.magnitude;
  adapter->scaling = shape.scaling;
  adapter->dropout = shape.dropout;
  auto drop = std::make_shared<Container>("ModuleDict"), a = std::make_shared<Container>("ModuleDict"),
       b = std::make_shared<Container>("ModuleDict");
  if (shape.dropout > 0) drop->register_module("default", std::make_shared<Dropout>(shape.dropout));
  a->register_module("default", adapter->a);
  b->register_module("default", adapter->b);
  if (shape.dropout > 0) register_module("lora_dropout", drop);
  register_module("lora_A", a);
  register_module("lora_B", b);
  if (shape.magnitude) register_module("lora_magnitude_vector", make_magnitude(out_features_, &adapter->magnitude));
  adapter_ = std::move(adapter);
  train(is_training());
}

void Linear::remove_adapter() {
  if (!adapter_) return;
  if (adapter_->dropout > 0) unregister_module("lora_dropout");
  unregister_module("lora_A");
  unregister_module("lora_B");
  if (adapter_->magnitude.defined()) unregister_module("lora_magnitude_vector");
  adapter_.reset();
  squares_.reset();
}

at::Tensor Linear::forward_impl(at::Tensor x) {
  return adapter_ ? adapted(x) : affine(x, matrix(), bias);
}

at::Tensor Linear::adapted(const at::Tensor& x) {
  const double p = is_training() ? adapter_->dropout : 0.0;
  auto &a = *adapter_->a, &b = *adapter_->b;
  if (adapter_->magnitude.defined()) {
    if (!squares_.defined() || weight.requires_grad()) squares_ = squared_norms(matrix(), 1);
    return dora_linear(x, matrix(), bias, {a.weight, b.weight, adapter_->scaling, p}, adapter_->magnitude, squares_);
  }
  if (!a.hooked() && !b.hooked()) return lora_linear(x, matrix(), bias, {a.weight, b.weight, adapter_->scaling, p});
  const auto base = affine(x, matrix(), bias);
  const auto update = b(a(dropout(x.to(a.weight.scalar_type()), p)));
  return (base + update * adapter_->scaling).to(base.scalar_type());
}

}  // namespace tessera::nn
