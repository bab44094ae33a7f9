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
#include "nn/remake.h"
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

at::Tensor gated_rows(const at::Tensor& gate, const at::Tensor& up, bool silu) {
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
  return y;
}

class Gated : public torch::autograd::Function<Gated> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up, bool silu,
                            bool recorded) {
    ctx->save_for_backward({gate, up});
    ctx->saved_data["silu"] = silu;
    const auto y = gated_rows(gate, up, silu);
    if (recorded)
      set_recipe(y, {gate, up}, [silu](const auto& halves) { return gated_rows(halves[0], halves[1], silu); });
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
    return {gg, gu, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return relu_dropout(x, 0.0);
    case Activation::kGelu:
      return remakable({x}, [](const auto& s) { return at::gelu(s[0]); });
    case Activation::kGeluTanh:
      return remakable({x}, [](const auto& s) { return at::gelu(s[0], "tanh"); });
    case Activation::kSilu:
      return remakable({x}, [](const auto& s) { return at::silu(s[0]); });
    case Activation::kQuickGelu:
      return remakable({x}, [](const auto& s) { return at::mul(s[0], at::sigmoid(s[0] * 1.702)); });
    case Activation::kReluSquared: {
      return remakable({at::relu(x)}, [](const auto& s) { return at::mul(s[0], s[0]); });
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
    return Gated::apply(gate, up, activation == Activation::kSilu, at::GradMode::is_enabled());
  return remakable({activate(gate, activation), up}, [](const auto& s) { return at::mul(s[0], s[1]); });
}

}  // namespace tessera::nn
