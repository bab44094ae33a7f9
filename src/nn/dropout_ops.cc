#include "nn/dropout_ops.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/rows.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kPiece = 4096;  // elements of one kernel call

// Calls kernel(a, b, y, count, first index) over pieces; b may be undefined.
template <class Kernel>
void for_pieces(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y, const Kernel& kernel) {
  const std::int64_t n = y.numel(), pieces = (n + kPiece - 1) / kPiece;
  for_rows(pieces, kPiece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t piece = first; piece < last; ++piece) {
      const std::int64_t begin = piece * kPiece, count = std::min(kPiece, n - begin);
      ReadRow ra(a, count), rb(b, count);
      WriteRow out(y, count);
      const float* pa = ra.at(begin);
      const float* pb = rb.at(begin);
      kernel(pa, pb, out.at(begin), count, static_cast<std::uint32_t>(begin));
      out.store();
    }
  });
}

void store(AutogradContext* ctx, double p, tensor::RandomKey key) {
  ctx->saved_data["p"] = p;
  ctx->saved_data["a"] = static_cast<std::int64_t>(key.a);
  ctx->saved_data["b"] = static_cast<std::int64_t>(key.b);
}

kernels::Mask restore(AutogradContext* ctx) {
  const tensor::RandomKey key{static_cast<std::uint32_t>(ctx->saved_data["a"].toInt()),
                              static_cast<std::uint32_t>(ctx->saved_data["b"].toInt())};
  return kernels::make_mask(ctx->saved_data["p"].toDouble(), key);
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, double p) {
    const auto x = x_in.contiguous();
    const auto key = tensor::next_key();
    const auto y = at::empty_like(x);
    apply_mask(x, y, kernels::make_mask(p, key));
    store(ctx, p, key);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto gy = grads[0].contiguous();
    const auto gx = at::empty_like(gy);
    apply_mask(gy, gx, restore(ctx));
    return {gx, at::Tensor()};
  }
};

class DropoutAddFunction : public torch::autograd::Function<DropoutAddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& residual_in, const at::Tensor& x_in, double p) {
    const auto residual = residual_in.contiguous(), x = x_in.contiguous();
    const auto key = tensor::next_key();
    const auto mask = kernels::make_mask(p, key);
    const auto y = at::empty_like(residual);
    for_pieces(residual, x, y, [&](const float* r, const float* v, float* out, std::int64_t n, std::uint32_t first) {
      kernels::dropout_add(r, v, out, n, first, mask);
    });
    store(ctx, p, key);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto gy = grads[0].contiguous();
    at::Tensor gx;
    if (ctx->needs_input_grad(1)) {
      gx = at::empty_like(gy);
      apply_mask(gy, gx, restore(ctx));
    }
    return {gy, gx, at::Tensor()};
  }
};

class ReluDropoutFunction : public torch::autograd::Function<ReluDropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_in, double p) {
    const auto x = x_in.contiguous();
    const auto mask = kernels::make_mask(p, p > 0 ? tensor::next_key() : tensor::RandomKey{});
    const auto y = at::empty_like(x);
    for_pieces(x, {}, y, [&](const float* v, const float*, float* out, std::int64_t n, std::uint32_t first) {
      kernels::relu_dropout(v, out, n, first, mask);
    });
    ctx->save_for_backward({y});
    ctx->saved_data["scale"] = static_cast<double>(mask.scale);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto y = ctx->get_saved_variables()[0];
    const auto gy = grads[0].contiguous();
    const auto gx = at::empty_like(gy);
    const auto scale = static_cast<float>(ctx->saved_data["scale"].toDouble());
    for_pieces(gy, y, gx, [&](const float* g, const float* v, float* out, std::int64_t n, std::uint32_t) {
      kernels::relu_dropout_backward(g, v, out, n, scale);
    });
    return {gx, at::Tensor()};
  }
};

}  // namespace

void apply_mask(const at::Tensor& x, const at::Tensor& y, const kernels::Mask& mask) {
  for_pieces(x, {}, y, [&](const float* v, const float*, float* out, std::int64_t n, std::uint32_t first) {
    kernels::dropout(v, out, n, first, mask);
  });
}

void accumulate_masked(const at::Tensor& x, const at::Tensor& y, const kernels::Mask& mask) {
  for_pieces(x, y, y, [&](const float* v, const float* old, float* out, std::int64_t n, std::uint32_t first) {
    kernels::dropout_add(old, v, out, n, first, mask);
  });
}

at::Tensor dropout(const at::Tensor& x, double p) {
  return p == 0 ? x : DropoutFunction::apply(x, p);
}

at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, double p) {
  if (p == 0 || residual.scalar_type() != x.scalar_type()) return at::add(residual, dropout(x, p));
  return DropoutAddFunction::apply(residual, x, p);
}

at::Tensor relu_dropout(const at::Tensor& x, double p) {
  return ReluDropoutFunction::apply(x, p);
}

}  // namespace tessera::nn
