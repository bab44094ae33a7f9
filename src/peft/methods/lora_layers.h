#pragma once
// LoRA (Hu et al. 2021) in a layer. A is [rank, in], B [out, rank], with PEFT's meaning of in and out.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "nn/ops/lora_linear.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/linear.h"

namespace tessera::peft {

struct LoraShape {
  std::int64_t rank = 8;
  double scaling = 1.0;
  double dropout = 0.0;          // before A; ignored by an Embedding
  bool bias = false;             // B has one; not in an Embedding
  bool subtracts_start = false;  // see LoraLinear::start_a
};

/// y = x W^T + b + scaling * B A dropout(x), one fused product. Parameters: "lora_A.default.weight" and
/// "lora_B.default.weight", modules of their own that a wrap policy may make units.
class LoraLinear : public nn::LinearAdapter {
 public:
  LoraLinear(const nn::Linear& layer, const LoraShape& shape)
      : LoraLinear(shape, std::make_shared<nn::Linear>(layer.in_features(), shape.rank, false),
                   std::make_shared<nn::Linear>(shape.rank, layer.out_features(), shape.bias)) {}
  std::string class_name() const override { return "lora.Linear"; }
  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override;
  std::optional<nn::LowRank> plain_low_rank(const nn::Linear& layer) const override;
  double scaling() const { return scaling_; }

  const std::shared_ptr<nn::Linear> a, b;
  /// Frozen first values of A and B, whose product is taken off the base's (PiSSA and OLoRA change the base instead):
  /// "lora_start_A.default", "lora_start_B.default". Undefined: nothing is.
  at::Tensor start_a, start_b;

 protected:
  LoraLinear(const LoraShape& shape, std::shared_ptr<nn::Linear> a_in, std::shared_ptr<nn::Linear> b_in);
  /// With the dropout that applies now.
  nn::LowRank low_rank(const nn::Linear& layer) const;

 private:
  double scaling_, dropout_;
};

/// Rows gain scaling * (B A)^T. Parameters: "lora_embedding_A.default" [rank, num], "lora_embedding_B.default" [dim,
/// rank].
class LoraEmbedding : public nn::EmbeddingAdapter {
 public:
  LoraEmbedding(const nn::Embedding& layer, const LoraShape& shape);
  std::string class_name() const override { return "lora.Embedding"; }
  at::Tensor forward(const nn::Embedding& layer, const at::Tensor& ids) override;
  double scaling() const { return scaling_; }

  at::Tensor a, b;

 protected:
  /// The base rows and what they gain, not yet added up in the base's dtype.
  struct Rows {
    at::Tensor base, sum;
  };
  Rows rows(const nn::Embedding& layer, const at::Tensor& ids) const;
  const double scaling_;
};

}  // namespace tessera::peft
