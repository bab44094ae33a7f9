#include "peft/methods/hra.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/triu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "nn/ops/device.h"
#include "nn/ops/gemm.h"
#include "nn/ops/low_rank.h"
#include "nn/ops/matmul.h"

namespace tessera::peft {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor normalised(const at::Tensor& u) {
  return u / at::linalg_vector_norm(u, 2, at::IntArrayRef{0}, /*keepdim=*/true);
}

/// Gram-Schmidt, column by column.
at::Tensor orthonormalised(const at::Tensor& u) {
  std::vector<at::Tensor> columns;
  for (std::int64_t i = 0; i < u.size(1); ++i) {
    auto column = u.narrow(1, i, 1);
    for (const auto& before : columns) column = column - nn::matmul(before.t(), column) * before;
    columns.push_back(normalised(column));
  }
  return at::cat(columns, 1);
}

/// x + (x a') b; x: [N, in], a and b: [R, in], of one dtype.
class RankUpdate : public torch::autograd::Function<RankUpdate> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) {
    const auto u = nn::low_rank_project(x, a);
    ctx->save_for_backward({x, a, b, u});
    return updated(x, u, b);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &a = saved[1], &b = saved[2], &u = saved[3];
    const auto g = grads[0].contiguous();
    const auto gu = nn::low_rank_project(g, b);
    at::Tensor gx, ga, gb;
    if (ctx->needs_input_grad(0)) gx = updated(g, gu, a);
    if (ctx->needs_input_grad(1)) ga = nn::low_rank_gradient(gu, x);
    if (ctx->needs_input_grad(2)) gb = nn::low_rank_gradient(u, g);
    return {gx, ga, gb};
  }

 private:
  static at::Tensor updated(const at::Tensor& x, const at::Tensor& u, const at::Tensor& b) {
    const auto y = x.clone();
    nn::gemm_add(y, u, b);
    return y;
  }
};

at::Tensor rank_update(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) {
  return nn::has_kernels(x) ? RankUpdate::apply(x, a, b) : x + nn::matmul(nn::matmul(x, a.t()), b);
}

}  // namespace

void Hra::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.flag("apply_GS", apply_gs);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.flag("init_weights", init_weights);
  keys.text("bias", bias);
}

void Hra::check() const {
  TransformMethod::check();
  require_positive("r", r);
}

std::vector<AddedTensor> Hra::added(const LayerSizes& layer) const {
  const bool pairs = init_weights && r % 2 == 0;
  const auto draw = [pairs](const at::Tensor& u, tensor::RandomKey key) {
    if (!pairs) return kaiming_uniform()(u, key);
    const auto half = at::empty_like(u.narrow(1, 0, u.size(1) / 2), at::MemoryFormat::Contiguous);
    kaiming_uniform()(half, key);
    u.copy_(half.repeat_interleave(2, 1));
  };
  return {{"hra_u.default", {layer.in, r}, draw}};
}

at::Tensor Hra::transformed(const LayerSizes&, const at::Tensor& x, const Tensors& t) const {
  const auto dtype = x.scalar_type();
  if (apply_gs) {
    const auto q = orthonormalised(t[0]).t();
    return rank_update(x, q.to(dtype), (q * -2).to(dtype));
  }
  const auto u = normalised(t[0].to(at::kFloat));
  const auto s = at::triu(nn::matmul(u.t(), u), 1) + at::eye(r, u.options()) * 0.5;
  // x (H_0 H_1 ...)' = x - x U S^-T U'
  const auto turned = at::linalg_solve_triangular(s.t(), u.t(), /*upper=*/false);
  return rank_update(x, u.t().to(dtype), turned.neg().to(dtype));
}

}  // namespace tessera::peft
