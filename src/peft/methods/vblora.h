#pragma once
// VB-LoRA (Li et al. 2024): the factors of a low-rank delta are put together from sub-vectors, each a mixture of the
// top k vectors of one bank that all layers share and that trains with the mixtures' logits.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class VbLora final : public FactorMethod {
 public:
  std::int64_t r = 4, num_vectors = 256, vector_length = 256, topk = 2;
  double vblora_dropout = 0, init_vector_bank_bound = 0.02, init_logits_std = 0.1;
  bool save_only_topk_weights = false;  // what is saved is used, not trained on

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<VbLora>(*this); }
  std::string type() const override { return "VBLORA"; }
  std::string class_name() const override { return "vblora.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  std::vector<AddedTensor> shared(const std::vector<LayerSizes>& layers) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  std::vector<std::string> file_names(const std::string& parameter) const override;
  Values in_file(const Values& adapters) const override;
  /// Logits of what was saved.
  std::shared_ptr<const io::TensorSource> readable(std::shared_ptr<const io::TensorSource> file) const override;

 protected:
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;
};

}  // namespace tessera::peft
