#include "peft/methods/hra.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/triu.h>

#include <cmath>

namespace tessera::peft {
namespace {

at::Tensor normalised(const at::Tensor& u) {
  return u / at::linalg_vector_norm(u, 2, at::IntArrayRef{0}, /*keepdim=*/true);
}

/// Gram-Schmidt, column by column.
at::Tensor orthonormalised(const at::Tensor& u) {
  std::vector<at::Tensor> columns;
  for (std::int64_t i = 0; i < u.size(1); ++i) {
    auto column = u.narrow(1, i, 1);
    for (const auto& before : columns) column = column - at::mm(before.t(), column) * before;
    columns.push_back(normalised(column));
  }
  return at::cat(columns, 1);
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
  if (apply_gs) {
    const auto q = orthonormalised(t[0]);
    return x - at::mm(at::mm(x, q), q.t()) * 2;
  }
  const auto wide = t[0].to(at::kFloat);
  const auto u = normalised(wide);
  const auto s = at::triu(at::mm(u.t(), u), 1) + at::eye(r, u.options()) * 0.5;
  // x (H_0 H_1 ...)' = x - x U S^-T U'
  const auto turned = at::linalg_solve_triangular(s.t(), at::mm(x.to(at::kFloat), u), /*upper=*/false, /*left=*/false);
  return x - at::mm(turned, u.t()).to(x.scalar_type());
}

}  // namespace tessera::peft
