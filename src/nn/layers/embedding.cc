#include "tessera/nn/embedding.h"

#include "nn/ops/gemm.h"
#include "nn/ops/lookup.h"
#include "tessera/nn/init.h"

namespace tessera::nn {

Embedding::Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim, at::ScalarType dtype,
                     std::int64_t padding_idx)
    : padding_idx_(padding_idx) {
  weight = register_parameter("weight", make_parameter({num_embeddings, embedding_dim}, dtype));
}

std::string Embedding::extra_repr() const {
  return std::to_string(weight.size(0)) + ", " + std::to_string(weight.size(1)) +
         (padding_idx_ >= 0 ? ", padding_idx=" + std::to_string(padding_idx_) : "");
}

at::Tensor Embedding::rows(const at::Tensor& ids) const {
  return lookup(weight, ids, {}, padding_idx_);
}

at::Tensor Embedding::head_weight() const {
  const auto adapted = adapter() ? adapter()->head_weight(*this) : at::Tensor();
  return adapted.defined() ? adapted : weight;
}

at::Tensor Embedding::forward_impl(at::Tensor x) {
  if (x.is_floating_point()) return affine(x, head_weight(), {});
  return adapter() ? adapter()->forward(*this, x) : rows(x);
}

}  // namespace tessera::nn
