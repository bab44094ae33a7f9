#include "nn/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/dropout_ops.h"
#include "nn/rows.h"
#include "nn/simd.h"

namespace tessera::nn {
namespace kernels {

TESSERA_CLONES void silu_gate(const float* g, const float* u, float* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = g[i] / (1.0f + fast_exp(-(g[i] < -80.0f ? -80.0f : g[i]))) * u[i];
}

TESSERA_CLONES void silu_gate_backward(const float* gy, const float* g, const float* u, float* gg, float* gu,
                                       std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float s = 1.0f / (1.0f + fast_exp(-(g[i] < -80.0f ? -80.0f : g[i])));
    const float a = g[i] * s, grad = gy[i];
    gu[i] = grad * a;
    gg[i] = grad * u[i] * (s + a * (1.0f - s));
  }
}

constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

TESSERA_CLONES void gelu_gate(const float* g, const float* u, float* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = g[i];
    y[i] = 0.5f * x * (1.0f + fast_tanh(kRoot * (x + kCubic * x * x * x))) * u[i];
  }
}

TESSERA_CLONES void gelu_gate_backward(const float* gy, const float* g, const float* u, float* gg, float* gu,
                                       std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = g[i], grad = gy[i];
    const float t = fast_tanh(kRoot * (x + kCubic * x * x * x));
    const float slope = kRoot * (1.0f + 3.0f * kCubic * x * x);
    gu[i] = grad * 0.5f * x * (1.0f + t);
    gg[i] = grad * u[i] * 0.5f * ((1.0f + t) + x * (1.0f - t * t) * slope);
  }
}

}  // namespace kernels

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class Gated : public torch::autograd::Function<Gated> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up, bool silu) {
    const std::int64_t rows = gate.size(0), n = gate.size(1);
    const auto y = at::empty({rows, n}, gate.options());
    for_rows(rows, n, [&](std::int64_t first, std::int64_t last) {
      ReadRow g(gate, n), u(up, n);
      WriteRow out(y, n);
      for (std::int64_t r = first; r < last; ++r) {
        const float *pg = g.at(r * gate.stride(0)), *pu = u.at(r * up.stride(0));
        (silu ? kernels::silu_gate : kernels::gelu_gate)(pg, pu, out.at(r * n), n);
        out.store();
      }
    });
    ctx->save_for_backward({gate, up});
    ctx->saved_data["silu"] = silu;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &gate = saved[0], &up = saved[1];
    const auto gy = grads[0].contiguous();
    const bool silu = ctx->saved_data["silu"].toBool();
    const std::int64_t rows = gate.size(0), n = gate.size(1);
    const auto gg = at::empty({rows, n}, gate.options()), gu = at::empty({rows, n}, gate.options());
    for_rows(rows, n, [&](std::int64_t first, std::int64_t last) {
      ReadRow g(gate, n), u(up, n), in(gy, n);
      WriteRow out_g(gg, n), out_u(gu, n);
      for (std::int64_t r = first; r < last; ++r) {
        (silu ? kernels::silu_gate_backward : kernels::gelu_gate_backward)(
            in.at(r * n), g.at(r * gate.stride(0)), u.at(r * up.stride(0)), out_g.at(r * n), out_u.at(r * n), n);
        out_g.store();
        out_u.store();
      }
    });
    return {gg, gu, at::Tensor()};
  }
};

}  // namespace

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return relu_dropout(x, 0.0);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kQuickGelu:
      return at::mul(x, at::sigmoid(x * 1.702));
    case Activation::kReluSquared: {
      const auto positive = at::relu(x);
      return at::mul(positive, positive);
    }
    case Activation::kTanh:
      return at::tanh(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
    case Activation::kIdentity:
      break;
  }
  return x;
}

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  const bool rows = gate.dim() == 2 && gate.stride(1) == 1 && up.stride(1) == 1 && gate.dtype() == up.dtype();
  if (rows && (activation == Activation::kSilu || activation == Activation::kGeluTanh))
    return Gated::apply(gate, up, activation == Activation::kSilu);
  return at::mul(activate(gate, activation), up);
}

}  // namespace tessera::nn
