#include "tessera/nn/embedding.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "nn/container.h"
#include "nn/dora.h"
#include "nn/gemm.h"
#include "nn/lookup.h"
#include "tessera/base/error.h"
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

void Embedding::attach_adapter(const AdapterShape& shape) {
  TESSERA_CHECK(!adapter_, "an Embedding takes one adapter");
  auto adapter = std::make_unique<EmbeddingAdapter>();
  auto a = std::make_shared<Container>("ParameterDict"), b = std::make_shared<Container>("ParameterDict");
  adapter->a = a->register_parameter("default", make_parameter({shape.rank, weight.size(0)}, at::kFloat));
  adapter->b = b->register_parameter("default", make_parameter({weight.size(1), shape.rank}, at::kFloat));
  adapter->scaling = shape.scaling;
  register_module("lora_embedding_A", a);
  register_module("lora_embedding_B", b);
  if (shape.magnitude) register_module("lora_magnitude_vector", make_magnitude(weight.size(1), &adapter->magnitude));
  adapter_ = std::move(adapter);
}

void Embedding::remove_adapter() {
  if (!adapter_) return;
  if (adapter_->magnitude.defined()) unregister_module("lora_magnitude_vector");
  unregister_module("lora_embedding_A");
  unregister_module("lora_embedding_B");
  adapter_.reset();
  squares_.reset();
}

at::Tensor Embedding::adapted(const at::Tensor& ids) {
  const auto &a = adapter_->a, &b = adapter_->b, &magnitude = adapter_->magnitude;
  const auto base = lookup(weight, ids, {}, padding_idx_);
  const auto update = at::linear(lookup(a.t(), ids, {}, padding_idx_), b) * adapter_->scaling;
  auto rows = base + update;
  if (magnitude.defined()) {
    if (!squares_.defined() || weight.requires_grad()) squares_ = squared_norms(weight, 0);
    const auto table = weight.detach();
    const auto wa = at::mm(a.detach().to(table.scalar_type()), table).t();
    rows = rows * (magnitude / adapted_norms(squares_, wa, a, b, adapter_->scaling));
  }
  return rows.to(base.scalar_type());
}

at::Tensor Embedding::forward_impl(at::Tensor x) {
  if (x.is_floating_point()) return affine(x, weight, {});
  return adapter_ ? adapted(x) : lookup(weight, x, {}, padding_idx_);
}

}  // namespace tessera::nn
