#pragma once
#include <cstdint>
#include <string>

#include "tessera/nn/block.h"

namespace tessera::nn {

/// Integer input [...]: rows of the table, [..., dim]. Floating input [..., dim]: the tied output head, x W^T, [...,
/// num]; it goes through the same call so that a table which is a unit of its own is gathered for both uses.
class Embedding : public Layer {
 public:
  /// Lookups of `padding_idx` (negative: none) leave no gradient, as in torch.nn.Embedding.
  Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, at::ScalarType dtype = at::kFloat,
            std::int64_t padding_idx = -1);
  std::string class_name() const override { return "Embedding"; }
  std::string extra_repr() const override;
  std::int64_t padding_idx() const { return padding_idx_; }

  at::Tensor weight;  // [num_embeddings, embedding_dim]

 protected:
  /// ids outside the table: DataError names the id.
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  std::int64_t padding_idx_;
};

}  // namespace tessera::nn
