#pragma once
// MiSS (Kang and Yin 2024; once Bone): one small block is added to every block of r columns of W. "mini": one that
// repeats over the outputs, too. "bat": blocks for each r outputs, W_ij + W_ij b_i + b_i.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Miss final : public TensorMethod {
 public:
  std::int64_t r = 64, mini_r = 1;
  double miss_dropout = 0;
  std::string init_weights = "true";  // true (zeros) | false (random) | bat | mini (zeros)

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Miss>(*this); }
  std::string type() const override { return "MISS"; }
  std::string class_name() const override { return "miss.MissLinear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const override;

 protected:
  bool takes_transposed() const override { return false; }

 private:
  /// [r, out], whatever the kind.
  at::Tensor block(const LayerSizes& sizes, const at::Tensor& t) const;
};

}  // namespace tessera::peft
