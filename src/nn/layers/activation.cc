#include "nn/layers/activation.h"

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

#include "nn/kernels/simd.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/remake.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace kernels {

/// Gradients of a gate's halves.
struct GateSlopes {
  float gate, up;
};
/// s: the sigmoid of g.
TESSERA_INLINE GateSlopes silu_slopes(float g, float u, float s, float grad) {
  const float a = g * s;
  return {grad * u * (s + a * (1.0f - s)), grad * a};
}

// Rows of T: float32, or bfloat16 as its bits, which is converted in registers.
template <class T>
TESSERA_INLINE void silu_row(const T* g, const T* u, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = widened(g[i]);
    narrow_to(y[i], x / (1.0f + fast_exp(-(x < -80.0f ? -80.0f : x))) * widened(u[i]));
  }
}
template <class T>
TESSERA_INLINE void silu_row_backward(const T* gy, const T* g, const T* u, T* gg, T* gu, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = widened(g[i]);
    const float s = 1.0f / (1.0f + fast_exp(-(x < -80.0f ? -80.0f : x)));
    const auto slopes = silu_slopes(x, widened(u[i]), s, widened(gy[i]));
    narrow_to(gu[i], slopes.up);
    narrow_to(gg[i], slopes.gate);
  }
}
// The same, and y = silu(g) * u.
template <class T>
TESSERA_INLINE void silu_row_again(const T* gy, const T* g, const T* u, T* gg, T* gu, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = widened(g[i]), v = widened(u[i]);
    const float d = 1.0f + fast_exp(-(x < -80.0f ? -80.0f : x));
    const auto slopes = silu_slopes(x, v, 1.0f / d, widened(gy[i]));
    narrow_to(y[i], x / d * v);  // the forward's roundings
    narrow_to(gu[i], slopes.up);
    narrow_to(gg[i], slopes.gate);
  }
}

constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

TESSERA_INLINE float gelu_tanh(float x) {
  return fast_tanh(kRoot * (x + kCubic * x * x * x));
}
/// t: gelu_tanh(x).
TESSERA_INLINE GateSlopes gelu_slopes(float x, float u, float t, float grad) {
  const float slope = kRoot * (1.0f + 3.0f * kCubic * x * x);
  return {grad * u * 0.5f * ((1.0f + t) + x * (1.0f - t * t) * slope), grad * 0.5f * x * (1.0f + t)};
}

template <class T>
TESSERA_INLINE void gelu_row(const T* g, const T* u, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = widened(g[i]);
    narrow_to(y[i], 0.5f * x * (1.0f + gelu_tanh(x)) * widened(u[i]));
  }
}
template <class T>
TESSERA_INLINE void gelu_row_backward(const T* gy, const T* g, const T* u, T* gg, T* gu, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = widened(g[i]);
    const auto slopes = gelu_slopes(x, widened(u[i]), gelu_tanh(x), widened(gy[i]));
    narrow_to(gu[i], slopes.up);
    narrow_to(gg[i], slopes.gate);
  }
}
template <class T>
TESSERA_INLINE void gelu_row_again(const T* gy, const T* g, const T* u, T* gg, T* gu, T* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = widened(g[i]), v = widened(u[i]), t = gelu_tanh(x);
    const auto slopes = gelu_slopes(x, v, t, widened(gy[i]));
    narrow_to(y[i], 0.5f * x * (1.0f + t) * v);
    narrow_to(gu[i], slopes.up);
    narrow_to(gg[i], slopes.gate);
  }
}

#define TESSERA_GATE(name, T)                                                                                      \
  TESSERA_CLONES void name##_gate(const T* g, const T* u, T* y, std::int64_t n) {                                  \
    name##_row(g, u, y, n);                                                                                        \
  }                                                                                                                \
  TESSERA_CLONES void name##_gate_backward(const T* gy, const T* g, const T* u, T* gg, T* gu, std::int64_t n) {    \
    name##_row_backward(gy, g, u, gg, gu, n);                                                                      \
  }                                                                                                                \
  TESSERA_CLONES void name##_gate_again(const T* gy, const T* g, const T* u, T* gg, T* gu, T* y, std::int64_t n) { \
    name##_row_again(gy, g, u, gg, gu, y, n);                                                                      \
  }
TESSERA_GATE(silu, float)
TESSERA_GATE(silu, std::uint16_t)
TESSERA_GATE(gelu, float)
TESSERA_GATE(gelu, std::uint16_t)
#undef TESSERA_GATE

}  // namespace kernels

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
const T* row_of(const at::Tensor& t, std::int64_t r) {
  return static_cast<const T*>(t.const_data_ptr()) + r * t.stride(0);
}
template <class T>
T* mutable_row_of(const at::Tensor& t, std::int64_t r) {
  return static_cast<T*>(t.mutable_data_ptr()) + r * t.stride(0);
}

template <class T>
void write_gated_rows(const at::Tensor& gate, const at::Tensor& up, bool silu, const at::Tensor& y) {
  const std::int64_t n = gate.size(1);
  for_rows(gate.size(0), n, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T *g = row_of<T>(gate, r), *u = row_of<T>(up, r);
      T* out = mutable_row_of<T>(y, r);
      silu ? kernels::silu_gate(g, u, out, n) : kernels::gelu_gate(g, u, out, n);
    }
  });
}

at::Tensor gated_rows(const at::Tensor& gate, const at::Tensor& up, bool silu) {
  const auto y = at::empty(gate.sizes(), gate.options());
  if (gate.scalar_type() == at::kFloat) {
    write_gated_rows<float>(gate, up, silu, y);
  } else if (gate.scalar_type() == at::kBFloat16) {
    write_gated_rows<std::uint16_t>(gate, up, silu, y);
  } else {
    return gated_rows(gate.to(at::kFloat), up.to(at::kFloat), silu).to(gate.scalar_type());
  }
  return y;
}

/// Gradients of gate and up for `of`, a gradient of the product, if they are there.
struct GateGradients : torch::CustomClassHolder {
  at::Tensor of, gate, up;
};

template <class T>
void write_gate_gradients(const at::Tensor& gate, const at::Tensor& up, bool silu, const at::Tensor& gy,
                          const at::Tensor& y, const GateGradients& out) {
  const std::int64_t n = gate.size(1);
  for_rows(gate.size(0), n, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T *in = row_of<T>(gy, r), *g = row_of<T>(gate, r), *u = row_of<T>(up, r);
      T *gg = mutable_row_of<T>(out.gate, r), *gu = mutable_row_of<T>(out.up, r);
      if (y.defined()) {
        T* again = mutable_row_of<T>(y, r);
        silu ? kernels::silu_gate_again(in, g, u, gg, gu, again, n)
             : kernels::gelu_gate_again(in, g, u, gg, gu, again, n);
      } else {
        silu ? kernels::silu_gate_backward(in, g, u, gg, gu, n) : kernels::gelu_gate_backward(in, g, u, gg, gu, n);
      }
    }
  });
}

/// y: written, or undefined.
void gate_gradients(const at::Tensor& gate, const at::Tensor& up, bool silu, const at::Tensor& gy, const at::Tensor& y,
                    GateGradients& out) {
  const auto dtype = gate.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    const auto wide = y.defined() ? y.to(at::kFloat) : y;
    gate_gradients(gate.to(at::kFloat), up.to(at::kFloat), silu, gy.to(at::kFloat), wide, out);
    if (y.defined()) y.copy_(wide);
    out.gate = out.gate.to(dtype);
    out.up = out.up.to(dtype);
    return;
  }
  out.gate = at::empty(gate.sizes(), gate.options());
  out.up = at::empty(gate.sizes(), gate.options());
  (dtype == at::kFloat ? write_gate_gradients<float> : write_gate_gradients<std::uint16_t>)(gate, up, silu, gy, y, out);
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
