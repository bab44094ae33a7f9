#pragma once
#include <cstdint>
#include <string>

#include "tessera/nn/block.h"

namespace tessera::nn {

/// Integer input [...]: rows of the table, [..., dim]. Floating input [..., dim]: the tied output head, x W^T, [...,
/// num]; it goes through the same call so that a table which is a unit of its own is gathered for both uses.
class Embedding : public Layer {
 public:
  Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, at::ScalarType dtype = at::kFloat);
  std::string class_name() const override { return "Embedding"; }
  std::string extra_repr() const override;

  at::Tensor weight;  // [num_embeddings, embedding_dim]

 protected:
  /// ids outside the table: DataError names the id.
  at::Tensor forward_impl(at::Tensor x) override;
};

}  // namespace tessera::nn
