#pragma once
// Uni-LoRA (Li et al. 2025): a LoRA for each layer, all of whose numbers are those of one trained vector theta: a
// number of A or B is theta[i] / sqrt(uses of i), at an i that a seed chooses. The file may hold the places and the
// factors.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class UniLora final : public FactorMethod {
 public:
  std::int64_t r = 4;
  std::int64_t proj_seed = 42;
  std::int64_t theta_d_length = 256;
  double unilora_dropout = 0;
  double init_theta_d_bound = 0.02;
  bool init_weights = true;  // uniform within the bound; false: normal
  bool save_indices = false;

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<UniLora>(*this); }
  std::string type() const override { return "UNILORA"; }
  std::string class_name() const override { return "unilora.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::vector<AddedTensor> added(const LayerSizes&) const override { return {}; }
  std::vector<AddedTensor> shared(const std::vector<LayerSizes>& layers) const override;
  /// With save_indices, the layers' places, int64, and factors.
  Values in_file(const Values& adapters) const override;
  /// Takes them from the file.
  std::shared_ptr<const io::TensorSource> readable(std::shared_ptr<const io::TensorSource> file) const override;

 protected:
  void choose(const std::vector<Slot>& slots) override;
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;

 private:
  /// What A [r, in] or B [out, r] of a layer is made of.
  struct Factor {
    at::Tensor places;  // int32
    at::Tensor scales;  // float32, for each place; undefined: those of theta's numbers
  };
  at::Tensor made(const Factor& factor, const at::Tensor& theta) const;
  /// By a layer's name and "A" or "B".
  using Factors = std::map<std::pair<std::string, std::string>, Factor>;
  std::vector<std::string> listed_;  // a module's first layers in PEFT's order
  std::shared_ptr<Factors> factors_ = std::make_shared<Factors>();
  at::Tensor scales_;  // float32 [theta_d_length]
};

}  // namespace tessera::peft
