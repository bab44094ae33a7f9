#pragma once
// FourierFT (Gao et al. 2024): W + scaling * Re ifft2(S), S zero but for n trained numbers, at places that a seed
// chooses.
#include "nn/ops/sparse_delta.h"
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class FourierFt final : public DeltaMethod {
 public:
  std::int64_t n_frequency = 1000;
  double scaling = 150;
  std::int64_t random_loc_seed = 777;
  std::vector<std::pair<std::string, std::int64_t>> n_frequency_pattern;
  bool init_weights = false;  // zeros; false: normal

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<FourierFt>(*this); }
  std::string type() const override { return "FOURIERFT"; }
  std::string class_name() const override { return "fourierft.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  /// Where the numbers of a layer stand in the flat [out * in] spectrum, int64.
  at::Tensor places(const LayerSizes& layer) const;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;

 protected:
  at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const override;

 private:
  std::int64_t count_of(const LayerSizes& layer) const;
  nn::SparseDeltaPtr spectrum(const LayerSizes& layer) const;
};

}  // namespace tessera::peft
