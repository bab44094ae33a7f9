#pragma once
// VeRA (Kopiczko et al. 2024): all layers share two frozen random factors A [r, largest in] and B [largest out, r]; a
// layer trains a vector for each: W + (b * B[:out]) (d * A[:, :in]). Layers with the same input multiply it by A once.
#include "peft/methods/shared_projection.h"
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Vera : public FactorMethod {
 public:
  std::int64_t r = 256;
  std::int64_t projection_prng_key = 0;  // decides A and B, as torch's generator draws them
  bool save_projection = true;           // the file holds A and B
  double vera_dropout = 0;
  double d_initial = 0.1;
  bool init_weights = true;  // b zero, d constant; false: b ones, d normal

  Vera() : Vera("vera", 1) {}
  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Vera>(*this); }
  std::string type() const override { return "VERA"; }
  std::string class_name() const override { return "vera.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  std::vector<AddedTensor> shared(const std::vector<LayerSizes>& layers) const override;
  std::vector<std::string> file_names(const std::string& parameter) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;

 protected:
  /// stem: what the names of its tensors and keys begin with. A and d have so many numbers for each of the ranks, of
  /// which the first r count here.
  Vera(std::string stem, std::int64_t each) : stem_(std::move(stem)), each_(each) {}
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;

  std::string stem_;
  std::int64_t each_;
  std::shared_ptr<SharedProjection> projection_ = std::make_shared<SharedProjection>();  // of all layers
};

/// x W^T + bias + ((u * d) B^T) * b as one node; x: [N, in], u: [N, r], wide_b: B [out, r]; W and B frozen. d:
/// undefined for ones.
at::Tensor vera_product(const at::Tensor& x, const nn::Weight& weight, const at::Tensor& bias, const at::Tensor& u,
                        const at::Tensor& d, const at::Tensor& b, const at::Tensor& wide_b);

}  // namespace tessera::peft
