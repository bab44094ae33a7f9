#pragma once
// RandLoRA (Albert et al. 2025): a full-rank sum of frozen random bases, shared by all layers, that a layer weighs with
// lambda [r, n] and gamma [n, smaller side].
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class RandLora final : public DeltaMethod {
 public:
  std::int64_t r = 32;
  std::int64_t projection_prng_key = 0;  // decides the bases, as torch's generator draws them
  bool save_projection = true;
  bool sparse = false, very_sparse = false;  // bases of -1, 0, 1
  double randlora_dropout = 0;
  double randlora_alpha = 640;
  bool init_weights = true;  // lambda zero; false: normal

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<RandLora>(*this); }
  std::string type() const override { return "RANDLORA"; }
  std::string class_name() const override { return "randlora.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  /// A [r, 1, smaller side] and B [larger side, n, r] of the largest layer.
  std::vector<AddedTensor> shared(const std::vector<LayerSizes>& layers) const override;
  /// PEFT writes A and B for the model and again for every layer.
  std::vector<std::string> file_names(const std::string& parameter) const override;

 protected:
  at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const override;
  std::int64_t inner(const LayerSizes& sizes) const override { return r * bases(sizes.smaller()); }
  /// One of them is B [larger, r n], which is frozen, the other lambda A gamma [r n, smaller].
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;
  double input_dropout() const override { return randlora_dropout; }

 private:
  std::int64_t bases(std::int64_t smaller) const { return (smaller + r - 1) / r; }
  std::vector<std::string> layers_;  // filled by attach()
};

}  // namespace tessera::peft
