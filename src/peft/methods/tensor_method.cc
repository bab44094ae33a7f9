#include "peft/methods/tensor_method.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/eye.h>

#include <cmath>

#include "base/factor_order.h"
#include "nn/layers/container.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/gemm.h"
#include "nn/ops/matmul.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {
namespace {

/// "oft_R.default.weight": the module that holds the parameter, and the parameter's own name.
struct NameParts {
  std::string module, inner, leaf;
};

NameParts parts_of(const std::string& name) {
  const auto first = name.find('.'), last = name.rfind('.');
  if (first == last) return {name.substr(0, first), "", name.substr(first + 1)};
  return {name.substr(0, first), name.substr(first + 1, last - first - 1), name.substr(last + 1)};
}

at::Tensor register_tensor(nn::AdapterModule& module, const NameParts& name, const AddedTensor& tensor) {
  auto parameter = nn::make_parameter(tensor.sizes, at::kFloat);
  parameter.set_requires_grad(tensor.trains);
  if (name.inner.empty()) return module.register_parameter(name.leaf, parameter, tensor.trains);
  const auto children = module.named_children();
  const auto* found = children.find(name.inner);
  const auto inner =
      found ? *found : module.register_module(name.inner, std::make_shared<nn::Container>("ParameterDict"));
  return inner->register_parameter(name.leaf, parameter, tensor.trains);
}

class TensorAdapter : public nn::LinearAdapter {
 public:
  TensorAdapter(std::shared_ptr<const TensorMethod> method, LayerSizes sizes)
      : method_(std::move(method)), sizes_(std::move(sizes)) {
    std::map<std::string, nn::AdapterModule*> modules;
    for (const auto& tensor : method_->added(sizes_)) {
      const auto name = parts_of(tensor.name);
      auto*& module = modules[name.module];
      if (!module) module = &add_module(name.module, "ParameterDict");
      tensors_.push_back(register_tensor(*module, name, tensor));
    }
  }
  void share(const Tensors& tensors) { tensors_.insert(tensors_.end(), tensors.begin(), tensors.end()); }
  std::string class_name() const override { return method_->class_name(); }
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override {
    return method_->output(layer, sizes_, x, tensors_);
  }

 private:
  std::shared_ptr<const TensorMethod> method_;
  LayerSizes sizes_;
  Tensors tensors_;
};

LayerSizes sizes_of(const Slot& slot) {
  return {slot.name, slot.linear->in_features(), slot.linear->out_features(), false};
}

Fill keyed(const Draw& draw, std::uint64_t seed, const std::string& name) {
  return [draw, key = tensor::named_key(seed, name)](const at::Tensor& t) { draw(t, key); };
}

}  // namespace

Draw zeros() {
  return constant(0);
}
Draw constant(double value) {
  return [value](const at::Tensor& t, tensor::RandomKey) { t.fill_(value); };
}
Draw normal(double std, double mean) {
  return [=](const at::Tensor& t, tensor::RandomKey key) { tensor::fill_normal(t, key, mean, std); };
}
Draw uniform(double bound) {
  return [=](const at::Tensor& t, tensor::RandomKey key) { tensor::fill_uniform(t, key, -bound, bound); };
}
Draw kaiming_uniform() {
  return [](const at::Tensor& t, tensor::RandomKey key) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(t.numel() / t.size(0)));
    tensor::fill_uniform(t, key, -bound, bound);
  };
}

void TensorMethod::check() const {
  LayerMethod::check();
  if (bias != "none" && bias != "all" && !bias.ends_with("_only"))
    throw ConfigError("bias is one of none, all, <method>_only; found '" + bias + "'", "bias");
}

void TensorMethod::bind_targets(ConfigKeys& keys) {
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.integers("layers_to_transform", layers_to_transform);
  keys.names("layers_pattern", layers_pattern);
}

void TensorMethod::require_positive(const std::string& key, std::int64_t value) {
  if (value <= 0) throw ConfigError(key + " must be positive, found " + std::to_string(value), key);
}

void TensorMethod::require_probability(const std::string& key, double value) {
  if (!(value >= 0 && value < 1)) throw ConfigError(key + " must be in [0, 1), found " + std::to_string(value), key);
}

void TensorMethod::require_places(std::int64_t n_frequency, const LayerSizes& layer) {
  if (n_frequency > 0 && n_frequency <= layer.in * layer.out) return;
  throw ConfigError("n_frequency is " + std::to_string(n_frequency) + ", but '" + layer.name + "' has " +
                        std::to_string(layer.in * layer.out) + " places; choose between 1 and that",
                    "n_frequency");
}

std::vector<std::string> TensorMethod::feed_forward_of_gpt2(const models::ModelConfig& family) const {
  if (family.model_type == "gpt2" || family.model_type == "gpt_bigcode") return {"mlp.c_proj"};
  return TensorMethod::default_targets(family);
}

std::vector<std::string> TensorMethod::default_targets(const models::ModelConfig& family) const {
  return family.default_lora_targets;
}

void TensorMethod::attach_to(const Slot& slot) const {
  if (!slot.linear) {
    throw ConfigError(
        "target_modules: '" + slot.name + "' is an embedding, which " + type() + " does not adapt; leave it out",
        "target_modules");
  }
  if (slot.transposed() && !takes_transposed()) {
    throw ConfigError("target_modules: '" + slot.name + "' keeps its weight as [in, out] (Conv1D), which " + type() +
                          " does not adapt, as in PEFT",
                      "target_modules");
  }
  std::shared_ptr<const PeftMethod> copy = clone();
  slot.linear->attach(
      std::make_shared<TensorAdapter>(std::dynamic_pointer_cast<const TensorMethod>(copy), sizes_of(slot)));
}

std::vector<std::string> TensorMethod::attach(models::Model& model, const models::ModelConfig& family) {
  auto names = LayerMethod::attach(model, family);
  std::vector<LayerSizes> layers;
  for (const auto& slot : adapted_slots(model)) layers.push_back(sizes_of(slot));
  first_layer_ = layers.front().name;
  shared_ = shared(layers);
  shared_values_.clear();
  for (const auto& tensor : shared_) {
    const auto name = parts_of(tensor.name);
    const auto module =
        model.register_module(name.module, std::make_shared<nn::AdapterModule>(std::string("ParameterDict")));
    shared_values_.push_back(register_tensor(*module, name, tensor));
  }
  for (const auto& slot : adapted_slots(model))
    dynamic_cast<TensorAdapter&>(*slot.linear->adapter()).share(shared_values_);
  return names;
}

std::map<std::string, Fill> TensorMethod::first_values_of(const Slot& slot, std::uint64_t seed) const {
  std::map<std::string, Fill> out;
  for (const auto& tensor : added(sizes_of(slot)))
    out[tensor.name] = keyed(tensor.draw, seed, slot.name + "." + tensor.name);
  return out;
}

std::map<std::string, Fill> TensorMethod::first_values(const nn::HookedModule& model, std::uint64_t seed) const {
  auto out = LayerMethod::first_values(model, seed);
  for (const auto& tensor : shared_) out[tensor.name] = keyed(tensor.draw, seed, tensor.name);
  return out;
}

std::string TensorMethod::file_name(const std::string& parameter) const {
  for (const auto& tensor : shared_)
    if (tensor.name == parameter) return "base_model." + parts_of(parameter).module;
  return LayerMethod::file_name(parameter);
}

// A tensor that all layers share is listed below the first of them.
std::string TensorMethod::name_in_peft(const std::string& parameter) const {
  for (const auto& tensor : shared_)
    if (tensor.name == parameter) return prefix() + first_layer_ + "." + parameter;
  return LayerMethod::name_in_peft(parameter);
}

at::Tensor TensorMethod::merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                                const Values& adapter) const {
  const at::NoGradGuard no_grad;
  const auto sizes = sizes_of(slot);
  Tensors tensors;
  for (const auto& tensor : added(sizes)) tensors.push_back(adapter.at(tensor.name).detach().to(at::kFloat));
  for (const auto& tensor : shared_) tensors.push_back(adapter.at(tensor.name).detach().to(at::kFloat));
  const auto w = value.detach().to(at::kFloat);
  if (leaf == "bias") return merged_bias(w, tensors).to(value.scalar_type()).contiguous();
  const auto sum = merged_weight(sizes, slot.transposed() ? w.t() : w, tensors);
  return (slot.transposed() ? sum.t() : sum).to(value.scalar_type()).contiguous();
}

at::Tensor DeltaMethod::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                               const Tensors& t) const {
  const auto mask = layer.is_training() ? delta_mask(sizes) : at::Tensor();  // [out, 1]
  const double p = layer.is_training() ? input_dropout() : 0;
  const auto with_mask = [mask](const at::Tensor& d) { return mask.defined() ? d * mask.to(d.scalar_type()) : d; };
  const auto rank = inner(sizes);
  if (rank > 0 && factors_are_less_work({x.numel() / sizes.in, sizes.in, sizes.out}, rank)) {
    return factor_product(x, layer.handle(), layer.bias, t, [this, sizes, with_mask, p](const Tensors& tensors) {
      auto made = factors(sizes, tensors);
      made.b = with_mask(made.b);
      made.dropout = p;
      return made;
    });
  }
  const auto make = [this, sizes, with_mask](const Tensors& tensors) { return with_mask(delta(sizes, tensors)); };
  return delta_product(x, layer.handle(), layer.bias, t, make, p);
}

at::Tensor DeltaMethod::merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const {
  return w + delta(sizes, t);
}

at::Tensor FactorMethod::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                                const Tensors& t) const {
  const bool training = layer.is_training();
  return factor_product(x, layer.handle(), layer.bias, t, [this, sizes, training](const Tensors& tensors) {
    auto made = factors(sizes, tensors);
    if (!training) made.dropout = 0;
    return made;
  });
}

at::Tensor FactorMethod::merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const {
  const auto f = factors(sizes, t);
  return at::addmm(w, f.b, f.middle.defined() ? f.a * f.middle.unsqueeze(1) : f.a, 1, f.scaling);
}

at::Tensor TransformMethod::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                                   const Tensors& t) const {
  const auto dtype = t.front().scalar_type();
  const auto rows = x.reshape({-1, sizes.in}).to(dtype);
  auto now = sizes;
  now.training = layer.is_training();
  const auto turned = nn::remade(rows, t,
                                 [this, now](const at::Tensor& kept, const Tensors& tensors) {
                                   return transformed(now, kept, tensors);
                                 })
                          .to(x.scalar_type())
                          .view(x.sizes());
  const auto factor = scale(t);
  if (!factor.defined()) return layer.product(turned);
  const auto y = nn::affine(turned, layer.handle(), {});
  const auto scaled = y * factor;
  return (layer.bias.defined() ? scaled + layer.bias : scaled).to(y.scalar_type());
}

at::Tensor TransformMethod::merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const {
  const auto turned = nn::matmul(w, transformed(sizes, at::eye(sizes.in, w.options()), t).t());
  const auto factor = scale(t);
  return factor.defined() ? turned * factor.unsqueeze(1) : turned;
}

}  // namespace tessera::peft
