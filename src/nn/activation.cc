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
#include <torch/custom_class.h>

#include <utility>

#include "nn/dropout_ops.h"
#include "nn/remake.h"
#include "nn/rows.h"
#include "nn/simd.h"

namespace tessera::nn {
namespace kernels {

/// Gradients of a gate's halves.
struct GateSlopes {
  float gate, up;
};
/// s: the sigmoid of g.
inline GateSlopes silu_slopes(float g, float u, float s, float grad) {
  const float a = g * s;
  return {grad * u * (s + a * (1.0f - s)), grad * a};
}

TESSERA_CLONES void silu_gate(const float* g, const float* u, float* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = g[i] / (1.0f + fast_exp(-(g[i] < -80.0f ? -80.0f : g[i]))) * u[i];
}

TESSERA_CLONES void silu_gate_backward(const float* gy, const float* g, const float* u, float* gg, float* gu,
                                       std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float s = 1.0f / (1.0f + fast_exp(-(g[i] < -80.0f ? -80.0f : g[i])));
    const auto slopes = silu_slopes(g[i], u[i], s, gy[i]);
    gu[i] = slopes.up;
    gg[i] = slopes.gate;
  }
}

// The same, and y = silu(g) * u.
TESSERA_CLONES void silu_gate_again(const float* gy, const float* g, const float* u, float* gg, float* gu, float* y,
                                    std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float d = 1.0f + fast_exp(-(g[i] < -80.0f ? -80.0f : g[i]));
    const float s = 1.0f / d;
    const auto slopes = silu_slopes(g[i], u[i], s, gy[i]);
    y[i] = g[i] / d * u[i];  // the forward's roundings
    gu[i] = slopes.up;
    gg[i] = slopes.gate;
  }
}

constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

inline float gelu_tanh(float x) {
  return fast_tanh(kRoot * (x + kCubic * x * x * x));
}
/// t: gelu_tanh(x).
inline GateSlopes gelu_slopes(float x, float u, float t, float grad) {
  const float slope = kRoot * (1.0f + 3.0f * kCubic * x * x);
  return {grad * u * 0.5f * ((1.0f + t) + x * (1.0f - t * t) * slope), grad * 0.5f * x * (1.0f + t)};
}

TESSERA_CLONES void gelu_gate(const float* g, const float* u, float* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = g[i];
    y[i] = 0.5f * x * (1.0f + gelu_tanh(x)) * u[i];
  }
}

TESSERA_CLONES void gelu_gate_backward(const float* gy, const float* g, const float* u, float* gg, float* gu,
                                       std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const auto slopes = gelu_slopes(g[i], u[i], gelu_tanh(g[i]), gy[i]);
    gu[i] = slopes.up;
    gg[i] = slopes.gate;
  }
}

TESSERA_CLONES void gelu_gate_again(const float* gy, const float* g, const float* u, float* gg, float* gu, float* y,
                                    std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = g[i], t = gelu_tanh(x);
    const auto slopes = gelu_slopes(x, u[i], t, gy[i]);
    y[i] = 0.5f * x * (1.0f + t) * u[i];
    gu[i] = slopes.up;
    gg[i] = slopes.gate;
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

/// Gradients of gate and up for `of`, a gradient of the product, if they are there.
struct GateGradients : torch::CustomClassHolder {
  at::Tensor of, gate, up;
};

/// y: written, or undefined.
void gate_gradients(const at::Tensor& gate, const at::Tensor& up, bool silu, const at::Tensor& gy, const at::Tensor& y,
                    GateGradients& out) {
  const std::int64_t rows = gate.size(0), n = gate.size(1);
  out.gate = at::empty({rows, n}, gate.options());
  out.up = at::empty({rows, n}, gate.options());
  for_rows(rows, n, [&](std::int64_t first, std::int64_t last) {
    ReadRow g(gate, n), u(up, n), in(gy, n);
    WriteRow out_g(out.gate, n), out_u(out.up, n), out_y(y, n);
    for (std::int64_t r = first; r < last; ++r) {
      const float *row = in.at(r * n), *rg = g.at(r * gate.stride(0)), *ru = u.at(r * up.stride(0));
      float *gg = out_g.at(r * n), *gu = out_u.at(r * n);
      if (y.defined()) {
        (silu ? kernels::silu_gate_again : kernels::gelu_gate_again)(row, rg, ru, gg, gu, out_y.at(r * n), n);
      } else {
        (silu ? kernels::silu_gate_backward : kernels::gelu_gate_backward)(row, rg, ru, gg, gu, n);
      }
      out_g.store();
      out_u.store();
      out_y.store();
    }
  });
}

class Gated : public torch::autograd::Function<Gated> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up, bool silu,
                            bool recorded) {
    ctx->save_for_backward({gate, up});
    ctx->saved_data["silu"] = silu;
    const auto y = gated_rows(gate, up, silu);
    if (!recorded) return y;
    auto found = c10::make_intrusive<GateGradients>();
    ctx->saved_data["found"] = c10::IValue::make_capsule(found);
    const auto make = [silu](const auto& halves) { return gated_rows(halves[0], halves[1], silu); };
    set_recipe(y, {gate, up}, make, [silu, found](const auto& halves, const at::Tensor& gradient) {
      const auto again = at::empty(halves[0].sizes(), halves[0].options());
      gate_gradients(halves[0], halves[1], silu, gradient, again, *found);
      found->of = gradient;
      return again;
    });
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    GateGradients fresh, *found = &fresh;
    const auto held = ctx->saved_data.find("found");
    if (held != ctx->saved_data.end()) found = static_cast<GateGradients*>(held->second.toCapsule().get());
    if (!found->of.is_same(grads[0]))
      gate_gradients(saved[0], saved[1], ctx->saved_data["silu"].toBool(), grads[0].contiguous(), {}, *found);
    found->of.reset();
    return {std::exchange(found->gate, {}), std::exchange(found->up, {}), at::Tensor(), at::Tensor()};
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
  const bool rows =
      gate.is_cpu() && gate.dim() == 2 && gate.stride(1) == 1 && up.stride(1) == 1 && gate.dtype() == up.dtype();
  if (rows && (activation == Activation::kSilu || activation == Activation::kGeluTanh))
    return Gated::apply(gate, up, activation == Activation::kSilu, at::GradMode::is_enabled());
  return remakable({activate(gate, activation), up}, [](const auto& s) { return at::mul(s[0], s[1]); });
}

}  // namespace tessera::nn
