#pragma once
// GraLoRA (Jung et al. 2025): the weight as k x k blocks, each with a LoRA of rank r / k; blocks of a column share A,
// blocks of a row share B. A LoRA of rank hybrid_r may be added. It is computed as two factors of rank k r.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class GraLora final : public FactorMethod {
 public:
  std::int64_t r = 32, hybrid_r = 0;
  std::int64_t gralora_k = 2;  // blocks of a side
  double alpha = 64;           // the scale is alpha / (r + hybrid_r)
  double gralora_dropout = 0;
  bool init_weights = true;  // B zero; false: random

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<GraLora>(*this); }
  std::string type() const override { return "GRALORA"; }
  std::string class_name() const override { return "gralora.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;

 protected:
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;
};

}  // namespace tessera::peft
