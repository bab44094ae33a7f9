#include "peft/methods/cayley.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_inv_ex.h>
#include <ATen/ops/triu_indices.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/ops/matmul.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// With M = (I + S)^-1 the rotation is 2 M - I, and dM = -M dS M.
class Cayley : public torch::autograd::Function<Cayley> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& skew) {
    const auto wide = skew.to(at::kFloat);
    const auto one = at::eye(wide.size(1), wide.options());
    // I + S has one, so that nobody need wait to see whether it was found.
    const auto inverse = std::get<0>(at::linalg_inv_ex(wide + one));
    ctx->save_for_backward({inverse});
    return (inverse * 2 - one).to(skew.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto transposed = ctx->get_saved_variables()[0].transpose(1, 2);
    const auto of_inverse = at::bmm(transposed, grads[0].to(at::kFloat));
    return {(at::bmm(of_inverse, transposed) * -2).to(grads[0].scalar_type())};
  }
};

}  // namespace

at::Tensor skew_symmetric(const at::Tensor& triangles, std::int64_t n) {
  const auto at = at::triu_indices(n, n, 1, at::TensorOptions().dtype(at::kLong).device(triangles.device()));
  const auto places = at.select(0, 0) * n + at.select(0, 1);
  const auto upper = at::zeros({triangles.size(0), n * n}, triangles.options())
                         .index_copy(1, places, triangles)
                         .view({triangles.size(0), n, n});
  return upper - upper.transpose(1, 2);
}

at::Tensor cayley_neumann(const at::Tensor& skew, std::int64_t terms) {
  auto sum = at::eye(skew.size(1), skew.options()).expand_as(skew);
  if (terms > 1) sum = sum + skew * 2;
  if (terms > 2) {
    auto power = nn::matmul(skew, skew);
    sum = sum + power * 2;
    for (std::int64_t i = 3; i < terms - 1; ++i) {
      power = nn::matmul(power, skew);
      sum = sum + power * 2;
    }
    sum = sum + nn::matmul(power, skew);
  }
  return sum;
}

at::Tensor cayley(const at::Tensor& skew) {
  return Cayley::apply(skew);
}

}  // namespace tessera::peft
