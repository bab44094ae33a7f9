#include "tessera/nn/weight.h"

#include "nn/layers/saved_weight.h"
#include "nn/ops/gemm.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

struct SavedWeight : torch::CustomClassHolder {
  explicit SavedWeight(Weight weight) : weight(std::move(weight)) {}
  Weight weight;
};

// sum + u v, where u is defined.
at::Tensor plus(at::Tensor sum, const at::Tensor& u, const at::Tensor& v) {
  return u.defined() ? sum.add_(gemm(u, v)) : sum;
}

at::Tensor dense_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& u, const at::Tensor& v) {
  return u.defined() ? gemm_sum(a, b, u, v) : gemm(a, b);
}

}  // namespace

Weight::Weight(std::shared_ptr<const tensor::PackedMatrix> packed, PackedProduct product,
               std::optional<at::ScalarType> compute)
    : tensor_(packed->fields.front()), packed_(std::move(packed)), product_(product), compute_(compute) {}

std::int64_t Weight::out_features() const {
  return packed() ? packed_->rows : tensor_.size(0);
}

at::ScalarType Weight::compute_dtype(at::ScalarType of_inputs) const {
  return packed() ? compute_.value_or(of_inputs) : of_inputs;
}

at::Tensor Weight::product(const at::Tensor& x, const at::Tensor& u, const at::Tensor& v) const {
  if (!packed()) return dense_product(x, tensor_.t(), u, v);
  if (compute_ && compute_ != x.scalar_type()) return plus(product(x.to(*compute_)).to(x.scalar_type()), u, v);
  if (product_ == PackedProduct::kOfInference) {
    const auto y = packed_->codec->inference_product(*packed_, x);
    if (y.defined()) return plus(y, u, v);
  }
  return gemm_packed(x, {*packed_, /*transposed=*/true}, u, v);
}

at::Tensor Weight::transposed_product(const at::Tensor& g, const at::Tensor& u, const at::Tensor& v) const {
  if (!packed()) return dense_product(g, tensor_, u, v);
  if (compute_ && compute_ != g.scalar_type())
    return plus(transposed_product(g.to(*compute_)).to(g.scalar_type()), u, v);
  return gemm_packed(g, {*packed_, /*transposed=*/false}, u, v);
}

at::Tensor Weight::gradient(const at::Tensor& g, const at::Tensor& x) const {
  TESSERA_CHECK(!packed(), "a packed weight has no gradient");
  return gemm(g.t(), x);
}

at::Tensor Weight::dequantise(at::ScalarType dtype) const {
  return packed() ? tensor::unpack(*packed_, dtype) : tensor_;
}

at::Tensor Weight::dequantised_rows(std::int64_t begin, std::int64_t count, at::ScalarType dtype) const {
  if (!packed()) return tensor_.narrow(0, begin, count);
  return tensor::unpack(*packed_, {begin, count, 0, packed_->columns}, dtype);
}

void save_weight(torch::autograd::AutogradContext* context, const Weight& weight) {
  if (weight.packed())
    context->saved_data["weight"] = at::IValue::make_capsule(c10::make_intrusive<SavedWeight>(weight));
}

Weight saved_weight(torch::autograd::AutogradContext* context, const at::Tensor& tensor) {
  const auto found = context->saved_data.find("weight");
  if (found == context->saved_data.end()) return tensor;
  return c10::static_intrusive_pointer_cast<SavedWeight>(found->second.toCapsule())->weight;
}

}  // namespace tessera::nn
