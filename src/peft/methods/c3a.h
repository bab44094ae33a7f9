#pragma once
// C3A (Chen et al. 2024): W + C / in, C of circulant blocks: each row of a block is the one before it, turned by one
// place. The blocks' first rows train.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class C3a final : public DeltaMethod {
 public:
  std::int64_t block_size = 256;
  std::vector<std::pair<std::string, std::int64_t>> block_size_pattern;
  std::string init_weights = "xavier_uniform";  // or false, the same; kaiming_uniform | gaussian | true (zeros)

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<C3a>(*this); }
  std::string type() const override { return "C3A"; }
  std::string class_name() const override { return "c3a.C3ALinear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;

 protected:
  at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const override;
  bool takes_transposed() const override { return false; }

 private:
  std::int64_t block_of(const LayerSizes& layer) const;
  Draw draw_for(const LayerSizes& layer) const;
};

}  // namespace tessera::peft
