#include "tessera/nn/linear.h"

#include <ATen/core/grad_mode.h>

#include "nn/ops/gemm.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::nn {

Linear::Linear(std::int64_t in_features, std::int64_t out_features, bool with_bias, at::ScalarType dtype,
               WeightLayout layout)
    : in_features_(in_features), out_features_(out_features), layout_(layout), layout_in_files_(layout) {
  const bool out_in = layout == WeightLayout::kOutIn;
  weight = register_parameter(
      "weight", make_parameter({out_in ? out_features : in_features, out_in ? in_features : out_features}, dtype));
  if (with_bias) bias = register_parameter("bias", make_parameter({out_features}, dtype));
}

std::string Linear::class_name() const {
  if (adapter()) return adapter()->class_name();
  return layout_ == WeightLayout::kInOut ? "Conv1D" : "Linear";
}

std::string Linear::extra_repr() const {
  if (layout_ == WeightLayout::kInOut)
    return "nf=" + std::to_string(out_features_) + ", nx=" + std::to_string(in_features_);
  return "in_features=" + std::to_string(in_features_) + ", out_features=" + std::to_string(out_features_) +
         ", bias=" + (bias.defined() ? "True" : "False") + (packed_ ? ", weight=(" + codec()->name() + ")" : "");
}

void Linear::pack(std::shared_ptr<const tensor::Codec> codec, std::optional<at::ScalarType> compute) {
  TESSERA_CHECK(!packed_, "a weight is packed once");
  if (layout_ == WeightLayout::kInOut) {
    const at::NoGradGuard no_grad;
    layout_ = WeightLayout::kOutIn;
    const bool has_values = !tensor::is_detached(weight);
    weight.set_data(has_values ? weight.t().contiguous()
                               : make_parameter({out_features_, in_features_}, weight.scalar_type()));
  }
  packed_ = register_module("weight", std::make_shared<PackedWeight>(std::move(codec), weight));
  compute_ = compute;
}

Weight Linear::handle() const {
  if (packed_)
    return Weight(packed_->matrix(), is_training() ? PackedProduct::kOfValues : PackedProduct::kOfInference, compute_);
  return layout_ == WeightLayout::kInOut ? weight.t() : weight;
}

bool Linear::multiplies_values() const {
  return !adapter() && (!packed_ || is_training() || !codec()->rounds_inputs());
}

at::Tensor Linear::product(const at::Tensor& x) const {
  return affine(x, handle(), bias);
}

at::Tensor Linear::forward_impl(at::Tensor x) {
  return adapter() ? adapter()->forward(*this, x) : product(x);
}

}  // namespace tessera::nn
