#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/nn/adapter.h"
#include "tessera/nn/block.h"

namespace tessera::nn {

/// The adapter of an Embedding: rows gain scaling * (B A)^T, times a magnitude with DoRA.
struct EmbeddingAdapter {
  at::Tensor a;          // [rank, num]
  at::Tensor b;          // [dim, rank]
  at::Tensor magnitude;  // [dim], undefined without DoRA
  double scaling = 1.0;
};

/// Integer input [...]: rows of the table, [..., dim]. Floating input [..., dim]: the tied output head, x W^T, [...,
/// num], of the table alone; it goes through the same call so that a table which is a unit of its own is gathered for
/// both uses.
class Embedding : public Layer {
 public:
  /// Lookups of `padding_idx` (negative: none) leave no gradient, as in torch.nn.Embedding.
  Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, at::ScalarType dtype = at::kFloat,
            std::int64_t padding_idx = -1);
  std::string class_name() const override { return adapter_ ? "lora.Embedding" : "Embedding"; }
  std::string extra_repr() const override;
  std::int64_t padding_idx() const { return padding_idx_; }

  /// Registers "lora_embedding_A.default" and "lora_embedding_B.default" (float32, without memory), with DoRA also
  /// "lora_magnitude_vector.default.weight", below this module and freezes nothing.
  void attach_adapter(const AdapterShape& shape);
  void remove_adapter();
  const EmbeddingAdapter* adapter() const { return adapter_.get(); }

  at::Tensor weight;  // [num_embeddings, embedding_dim]

 protected:
  /// ids outside the table: DataError names the id.
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  at::Tensor adapted(const at::Tensor& ids);
  std::int64_t padding_idx_;
  std::unique_ptr<EmbeddingAdapter> adapter_;
  at::Tensor squares_;  // [dim] float32, of the frozen table's columns; computed when DoRA first needs it
};

}  // namespace tessera::nn
