#pragma once
// BEFT (2025): a trained vector is added to the outputs of a layer, by default of the projections of values.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Beft final : public TensorMethod {
 public:
  bool init_weights = true;  // zeros; false: normal

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Beft>(*this); }
  std::string type() const override { return "BEFT"; }
  std::string class_name() const override { return "beft.Linear"; }
  void bind(ConfigKeys& keys) override;
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  void check_can_merge(const nn::HookedModule& adapted) const override;
  at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const override;
  at::Tensor merged_bias(const at::Tensor& b, const Tensors& t) const override;

 protected:
  bool takes_transposed() const override { return false; }
};

}  // namespace tessera::peft
