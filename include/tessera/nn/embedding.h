#pragma once
#include <cstdint>
#include <string>

#include "tessera/nn/adapter.h"
#include "tessera/nn/block.h"

namespace tessera::nn {

/// Integer input [...]: rows of the table, [..., dim], or what an adapter makes of them. Floating input [..., dim]: the
/// tied output head, x W^T, [..., num], of head_weight(); it goes through the same call so that a table which is a unit
/// of its own is gathered for both uses.
class Embedding : public Adaptable<EmbeddingAdapter> {
 public:
  /// Lookups of `padding_idx` (negative: none) leave no gradient, as in torch.nn.Embedding.
  Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, at::ScalarType dtype = at::kFloat,
            std::int64_t padding_idx = -1);
  std::string class_name() const override { return adapter() ? adapter()->class_name() : "Embedding"; }
  std::string extra_repr() const override;
  std::int64_t padding_idx() const { return padding_idx_; }
  /// The table's rows, [..., dim], whatever adapter there is. ids outside the table: DataError names the id.
  at::Tensor rows(const at::Tensor& ids) const;
  /// What a tied output head multiplies with: the weight, or what an adapter makes of it.
  at::Tensor head_weight() const;

  at::Tensor weight;  // [num_embeddings, embedding_dim]

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  std::int64_t padding_idx_;
};

}  // namespace tessera::nn
