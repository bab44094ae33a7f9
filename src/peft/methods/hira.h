#pragma once
// HiRA (Huang et al. 2025): W + W * (B A), the elementwise product of the weight and a matrix of rank r.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Hira final : public TensorMethod {
 public:
  std::int64_t r = 32;
  double hira_dropout = 0;                                         // of the adapter's input
  std::string init_weights = "true";                               // B zero; false: both normal | gaussian: A normal
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;  // kept, without effect

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Hira>(*this); }
  std::string type() const override { return "HIRA"; }
  std::string class_name() const override { return "hira.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  void check_new() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const override;
};

}  // namespace tessera::peft
