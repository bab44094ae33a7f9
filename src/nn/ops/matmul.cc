#include "nn/ops/matmul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "nn/ops/gemm.h"
#include "nn/ops/tiled_gemm.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of [M, K] [K, N], or of a batch of both.
class Product : public torch::autograd::Function<Product> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b) {
    ctx->save_for_backward({a, b});
    return gemm(a, b);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &a = saved[0], &b = saved[1];
    const auto g = grads[0].contiguous();
    return {ctx->needs_input_grad(0) ? gemm(g, b.transpose(-2, -1)) : at::Tensor(),
            ctx->needs_input_grad(1) ? gemm(a.transpose(-2, -1), g) : at::Tensor()};
  }
};

/// The dimensions of a before the last one are rows.
bool takes_rows(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() < 2 || b.dim() != 2 || a.numel() == 0 || b.numel() == 0) return false;
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == b.scalar_type() &&
         belongs_to_tiles(a.scalar_type(),
                          {a.numel() / a.size(-1), a.size(-1), b.size(1), a.stride(-1) == 1, b.stride(0) == 1});
}

at::Tensor product_of_rows(const at::Tensor& a, const at::Tensor& b) {
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(1);
  return Product::apply(a.reshape({-1, a.size(-1)}), b).view(sizes);
}

}  // namespace

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  if (takes_rows(a, b)) return product_of_rows(a, b);
  if (a.dim() == 2 && b.dim() == 3) {  // one factor for the whole batch: it is the second of the transposed product
    const auto turned = b.transpose(1, 2);
    if (takes_rows(turned, a.t())) return product_of_rows(turned, a.t()).transpose(1, 2).contiguous();
  }
  const bool both = a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.numel() > 0 && b.numel() > 0;
  return both && belongs_to_tiles(a, b) ? Product::apply(a, b) : at::matmul(whole_rows(a), whole_rows(b));
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!takes_rows(x, weight.t()))
    return at::linear(whole_rows(x), whole_rows(weight), bias.defined() ? std::optional(bias) : std::nullopt);
  const auto y = product_of_rows(x, weight.t());
  return bias.defined() ? y + bias : y;
}

}  // namespace tessera::nn
