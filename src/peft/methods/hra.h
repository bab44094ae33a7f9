#pragma once
// HRA (Yuan et al. 2024): W (I - 2 u_0 u_0') (I - 2 u_1 u_1') ..., the u normalised, or orthonormalised first
// (apply_GS). The reflections are applied to x at once, as I - U S^-T U' (Joffrain et al. 2006).
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Hra final : public TransformMethod {
 public:
  std::int64_t r = 8;
  bool apply_gs = false;
  bool init_weights = true;  // equal pairs, which cancel out

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Hra>(*this); }
  std::string type() const override { return "HRA"; }
  std::string class_name() const override { return "hra.HRALinear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;

 protected:
  at::Tensor transformed(const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const override;
  bool takes_transposed() const override { return false; }
};

}  // namespace tessera::peft
