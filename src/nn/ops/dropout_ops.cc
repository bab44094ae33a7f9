#include "nn/ops/dropout_ops.h"
#include "nn/ops/device.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/composite/composite.h"
#include "nn/ops/recompute.h"
#include "nn/ops/rows.h"
#include "nn/ops/sums.h"
#include "tensor/device_kernels.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls kernel(a, b, y, count, row) for every row; b may be undefined.
template <class Kernel>
void for_each_row(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y, const Kernel& kernel) {
  const std::int64_t rows = mask_rows(y), n = rows == 0 ? 0 : y.numel() / rows;
  for_rows(rows, n, [&](std::int64_t first, std::int64_t last) {
    ReadRow ra(a, n), rb(b, n);
    WriteRow out(y, n);
    for (std::int64_t row = first; row < last; ++row) {
      const float* pa = ra.at(row * n);
      const float* pb = rb.at(row * n);
      kernel(pa, pb, out.at(row * n), n, row);
      out.store();
    }
  });
}

/// y = base + mask(x) where they lie, or mask(x) without a base.
void mask_into(const at::Tensor& base, const at::Tensor& x, const at::Tensor& y, const DropoutMask& mask) {
  if (has_kernels(x)) {
    for_each_row(base, x, y, [&](const float* b, const float* v, float* out, std::int64_t n, std::int64_t row) {
      b ? kernels::dropout_add(b, v, out, n, 0, mask.row(row)) : kernels::dropout(v, out, n, 0, mask.row(row));
    });
    return;
  }
  if (!tensor::has_device_kernels(x)) {
    y.copy_(composite::masked(x, mask, base));
    return;
  }
  const auto keys = mask.row_keys(mask_rows(x), x);
  const auto draw = mask.draw();
  tensor::launch(&DeviceKernels::dropout, "dropout", x,
                 DeviceDropout{.x = tensor::read_there(x),
                               .base = tensor::read_there(base),
                               .y = tensor::written_there(y),
                               .dtype = tensor::device_dtype(x.scalar_type()),
                               .rows = mask_rows(x),
                               .n = x.numel() == 0 ? 0 : x.numel() / mask_rows(x),
                               .keys = tensor::read_there<std::uint32_t>(keys),
                               .draw_a = draw.key.a,
                               .draw_b = draw.key.b,
                               .threshold = draw.threshold,
                               .scale = draw.scale});
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, double p, bool recorded) {
    const auto x = x_in.contiguous();
    const DropoutMask mask(p, mask_rows(x));
    const auto drop = [mask](const at::Tensor& from) {
      const auto to = at::empty_like(from);
      apply_mask(from, to, mask);
      return to;
    };
    const auto y = drop(x);
    mask.save(ctx);
    if (recorded) extend_recipe(y, x, drop);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto gy = grads[0].contiguous();
    const auto gx = at::empty_like(gy);
    apply_mask(gy, gx, DropoutMask::load(ctx));
    return {gx, at::Tensor(), at::Tensor()};
  }
};

class DropoutAddFunction : public torch::autograd::Function<DropoutAddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& residual_in, const at::Tensor& x_in, double p) {
    const auto residual = residual_in.contiguous(), x = x_in.contiguous();
    const DropoutMask mask(p, mask_rows(x));
    const auto y = at::empty_like(residual);
    mask_into(residual, x, y, mask);
    mask.save(ctx);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto gy = grads[0].contiguous();
    at::Tensor gx;
    if (ctx->needs_input_grad(1)) {
      gx = at::empty_like(gy);
      apply_mask(gy, gx, DropoutMask::load(ctx));
    }
    return {gy, gx, at::Tensor()};
  }
};

class ReluDropoutFunction : public torch::autograd::Function<ReluDropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, double p) {
    const auto x = x_in.contiguous();
    const DropoutMask mask(p, mask_rows(x));
    const auto y = at::empty_like(x);
    for_each_row(x, {}, y, [&](const float* v, const float*, float* out, std::int64_t n, std::int64_t row) {
      kernels::relu_dropout(v, out, n, 0, mask.row(row));
    });
    ctx->save_for_backward({y});
    ctx->saved_data["scale"] = static_cast<double>(mask.scale());
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto y = ctx->get_saved_variables()[0];
    const auto gy = grads[0].contiguous();
    const auto gx = at::empty_like(gy);
    const auto scale = static_cast<float>(ctx->saved_data["scale"].toDouble());
    for_each_row(gy, y, gx, [&](const float* g, const float* v, float* out, std::int64_t n, std::int64_t) {
      kernels::relu_dropout_backward(g, v, out, n, scale);
    });
    return {gx, at::Tensor()};
  }
};

}  // namespace

std::int64_t mask_rows(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.dim() == 0 ? 1 : x.numel() / x.size(-1);
}

void apply_mask(const at::Tensor& x, const at::Tensor& y, const DropoutMask& mask) {
  mask_into({}, x, y, mask);
}

void accumulate_masked(const at::Tensor& x, const at::Tensor& y, const DropoutMask& mask) {
  mask_into(y, x, y, mask);
}

at::Tensor masked(const at::Tensor& x, const DropoutMask& mask) {
  if (!mask.drops()) return x;
  auto y = at::empty_like(x);
  apply_mask(x, y, mask);
  return y;
}

at::Tensor dropout(const at::Tensor& x, double p) {
  return p == 0 ? x : DropoutFunction::apply(x, p, at::GradMode::is_enabled());
}

at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, double p) {
  if (p == 0 || residual.scalar_type() != x.scalar_type()) return plus(residual, dropout(x, p));
  return DropoutAddFunction::apply(residual, x, p);
}

at::Tensor relu_dropout(const at::Tensor& x, double p) {
  if (!has_kernels(x)) return dropout(at::relu(x), p);
  return ReluDropoutFunction::apply(x, p);
}

}  // namespace tessera::nn
