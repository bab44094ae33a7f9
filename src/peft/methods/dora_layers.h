#pragma once
// DoRA (Liu et al. 2024) in a layer: LoRA with a trained magnitude m for each output. The norms of W + scaling B A
// follow the adapter but take no gradient.
#include "peft/methods/lora_layers.h"

namespace tessera::peft {

/// y = m / |W + scaling B A| * (x W^T + scaling * B A dropout(x)) + b, one fused product. Besides LoRA's parameters
/// "lora_magnitude_vector.default.weight" [out].
class DoraLinear : public LoraLinear {
 public:
  DoraLinear(const nn::Linear& layer, const LoraShape& shape);
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override;
  std::optional<nn::LowRank> plain_low_rank(const nn::Linear&) const override { return std::nullopt; }

  at::Tensor magnitude;

 private:
  at::Tensor squares_;  // [out] float32, of the frozen weight's rows; computed when first needed
};

/// The same for the columns of a table; m is [dim].
class DoraEmbedding : public LoraEmbedding {
 public:
  DoraEmbedding(const nn::Embedding& layer, const LoraShape& shape);
  at::Tensor forward(const nn::Embedding& layer, const at::Tensor& ids) override;

  at::Tensor magnitude;

 private:
  at::Tensor squares_;  // [dim] float32, of the frozen table's columns; computed when first needed
};

}  // namespace tessera::peft
