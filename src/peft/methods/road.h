#pragma once
// RoAd (Liao and Monz 2024): the layer's outputs are turned in pairs and scaled, R (W x + b). Within each group of
// outputs the first half is paired with the second: (y_0, y_1) becomes (y_0 c_0 - y_1 s_0, y_1 c_1 + y_0 s_1), where c
// = alpha cos theta and s = alpha sin theta. road_1 has one angle and one scale for a pair, road_2 one for each output,
// road_4 others for c than for s.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Road final : public TensorMethod {
 public:
  std::string variant = "road_1";  // road_1 | road_2 | road_4
  std::int64_t group_size = 64;
  bool init_weights = true;  // no turn; false: normal

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Road>(*this); }
  std::string type() const override { return "ROAD"; }
  std::string class_name() const override { return "road.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const override;
  at::Tensor merged_bias(const at::Tensor& b, const Tensors& t) const override;

 protected:
  bool takes_transposed() const override { return false; }

 private:
  /// c and s of each output, as [groups, 2, half a group]; differentiable.
  Tensors factors(const Tensors& t) const;
  /// y: [N, out], of the tensors' dtype.
  at::Tensor turned(const at::Tensor& y, const Tensors& t) const;
};

}  // namespace tessera::peft
