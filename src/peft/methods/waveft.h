#pragma once
// WaveFT (Bilican et al. 2025): W + scaling * the inverse wavelet transform of S (one level, two dimensions), S zero
// but for n trained numbers, at places that a seed chooses. use_idwt false: W + scaling * S.
#include "nn/ops/sparse_delta.h"
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class WaveFt final : public DeltaMethod {
 public:
  std::int64_t n_frequency = 2592;
  double scaling = 25;
  std::string wavelet_family = "db1";
  bool use_idwt = true;
  std::int64_t random_loc_seed = 777;
  std::vector<std::pair<std::string, std::int64_t>> n_frequency_pattern;
  bool proportional_parameters = false;  // n_frequency is the mean, and layers get theirs by their size
  bool init_weights = true;              // zeros; false: normal

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<WaveFt>(*this); }
  std::string type() const override { return "WAVEFT"; }
  std::string class_name() const override { return "waveft.WaveFTLinear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;

 protected:
  void choose(const std::vector<Slot>& slots) override;
  at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const override;

 private:
  std::int64_t count_of(const LayerSizes& layer) const;
  nn::SparseDeltaPtr made_of(const LayerSizes& layer) const;

  std::map<std::string, std::int64_t> shares_;  // by layer, of proportional_parameters
};

}  // namespace tessera::peft
