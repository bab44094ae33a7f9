#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "nn/kernels/norm_kernels.h"
#include "nn/ops/rows.h"

namespace tessera::nn {

/// The sum over the rows of g [N, n], contiguous, in float32 (of float64 in that).
inline at::Tensor unrounded_column_sums(const at::Tensor& g) {
  const auto dtype = g.scalar_type();
  const std::int64_t rows = g.size(0), n = g.size(1);
  if (!g.is_cpu() || !is_float_or_bfloat16(dtype) || n == 0)
    return g.sum(0, /*keepdim=*/false, dtype == at::kDouble ? at::kDouble : at::kFloat);
  const std::int64_t fewest = std::max<std::int64_t>(1, kGrain / n);
  const std::int64_t parts = std::clamp<std::int64_t>(rows / fewest, 1, at::get_num_threads());
  const auto sums = at::zeros({parts, n}, g.options().dtype(at::kFloat));
  const auto add = [&](const auto* from, std::int64_t part) {
    const std::int64_t share = (rows + parts - 1) / parts;
    for (std::int64_t r = part * share; r < std::min(rows, (part + 1) * share); ++r)
      kernels::add_row(from + r * n, sums.mutable_data_ptr<float>() + part * n, n);
  };
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      if (dtype == at::kFloat)
        add(g.const_data_ptr<float>(), part);
      else
        add(static_cast<const std::uint16_t*>(g.const_data_ptr()), part);
    }
  });
  return parts == 1 ? sums[0] : sums.sum(0);
}

/// The same rounded once: a bias's gradient.
inline at::Tensor column_sums(const at::Tensor& g) {
  return unrounded_column_sums(g).to(g.scalar_type());
}

}  // namespace tessera::nn
