#include "nn/layers/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <numbers>
#include <utility>

#include "nn/kernels/activation_kernels.h"
#include "nn/ops/device.h"
#include "nn/ops/dropout_ops.h"
#include "nn/ops/recompute.h"
#include "nn/ops/rows.h"
#include "tensor/device_kernels.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [rows, n] tensors whose rows may lie apart. up: undefined stands for ones.
struct Gate {
  at::Tensor x, up;
  Activation activation;

  Gate in(at::ScalarType dtype) const { return {x.to(dtype), up.defined() ? up.to(dtype) : up, activation}; }
};

template <class T>
const T* row_of(const at::Tensor& t, std::int64_t r) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) + r * t.stride(0) : nullptr;
}
template <class T>
T* mutable_row_of(const at::Tensor& t, std::int64_t r) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) + r * t.stride(0) : nullptr;
}

template <class T>
void write_values(const Gate& gate, const at::Tensor& y) {
  const std::int64_t n = gate.x.size(1);
  for_rows(gate.x.size(0), n, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      kernels::activate(gate.activation, kernels::ActivationRow<T>{row_of<T>(gate.x, r), row_of<T>(gate.up, r),
                                                                   mutable_row_of<T>(y, r), n});
  });
}

DeviceActivation device_activation(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return kDeviceSilu;
    case Activation::kGelu:
      return kDeviceGelu;
    case Activation::kGeluTanh:
      return kDeviceGeluTanh;
    case Activation::kQuickGelu:
      return kDeviceQuickGelu;
    default:
      return kDeviceReluSquared;
  }
}

/// What the kernel of gate.x's device needs; the caller says what is written.
DeviceGate device_gate(const Gate& gate) {
  return {.x = tensor::read_there(gate.x),
          .up = tensor::read_there(gate.up),
          .gradient = nullptr,
          .value = nullptr,
          .x_gradient = nullptr,
          .up_gradient = nullptr,
          .dtype = tensor::device_dtype(gate.x.scalar_type()),
          .activation = device_activation(gate.activation),
          .rows = gate.x.size(0),
          .n = gate.x.size(1),
          .x_stride = gate.x.stride(0),
          .up_stride = gate.up.defined() ? gate.up.stride(0) : 0};
}

at::Tensor values_of(const Gate& gate) {
  const auto dtype = gate.x.scalar_type();
  if (!has_kernels(gate.x)) {
    const auto y = at::empty(gate.x.sizes(), gate.x.options());
    auto there = device_gate(gate);
    there.value = tensor::written_there(y);
    tensor::launch(&DeviceKernels::gate, "gate", y, there);
    return y;
  }
  if (dtype != at::kFloat && dtype != at::kBFloat16) return values_of(gate.in(at::kFloat)).to(dtype);
  const auto y = at::empty(gate.x.sizes(), gate.x.options());
  (dtype == at::kFloat ? write_values<float> : write_values<std::uint16_t>)(gate, y);
  return y;
}

/// Gradients of a gate's inputs for `of`, a gradient of its value, if they are there.
struct GateGradients : torch::CustomClassHolder {
  at::Tensor of, x, up;
};

template <class T>
void write_gradients(const Gate& gate, const at::Tensor& gy, const at::Tensor& y, const GateGradients& out) {
  const std::int64_t n = gate.x.size(1);
  for_rows(gate.x.size(0), n, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      kernels::activation_gradient(
          gate.activation, kernels::ActivationGradientRow<T>{row_of<T>(gy, r), row_of<T>(gate.x, r),
                                                             row_of<T>(gate.up, r), mutable_row_of<T>(out.x, r),
                                                             mutable_row_of<T>(out.up, r), mutable_row_of<T>(y, r), n});
  });
}

/// y: written, or undefined.
void find_gradients(const Gate& gate, const at::Tensor& gy, const at::Tensor& y, GateGradients& out) {
  const auto dtype = gate.x.scalar_type();
  if (!has_kernels(gate.x)) {
    out.x = at::empty(gate.x.sizes(), gate.x.options());
    out.up = gate.up.defined() ? at::empty(gate.x.sizes(), gate.x.options()) : at::Tensor();
    auto there = device_gate(gate);
    const auto gradient = gy.contiguous();
    there.gradient = tensor::read_there(gradient);
    there.value = tensor::written_there(y);
    there.x_gradient = tensor::written_there(out.x);
    there.up_gradient = tensor::written_there(out.up);
    tensor::launch(&DeviceKernels::gate, "gate", gy, there);
    return;
  }
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    const auto wide = y.defined() ? y.to(at::kFloat) : y;
    find_gradients(gate.in(at::kFloat), gy.to(at::kFloat), wide, out);
    if (y.defined()) y.copy_(wide);
    out.x = out.x.to(dtype);
    if (out.up.defined()) out.up = out.up.to(dtype);
    return;
  }
  out.x = at::empty(gate.x.sizes(), gate.x.options());
  out.up = gate.up.defined() ? at::empty(gate.x.sizes(), gate.x.options()) : at::Tensor();
  (dtype == at::kFloat ? write_gradients<float> : write_gradients<std::uint16_t>)(gate, gy, y, out);
}

/// activate(x) * up, or activate(x).
class Gated : public torch::autograd::Function<Gated> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& up,
                            Activation activation, bool recorded) {
    variable_list sources{x};
    if (up) sources.push_back(*up);
    ctx->save_for_backward(sources);
    ctx->saved_data["activation"] = static_cast<std::int64_t>(activation);
    const auto gate = [activation](const variable_list& from) {
      return Gate{from[0], from.size() > 1 ? from[1] : at::Tensor(), activation};
    };
    const auto y = values_of(gate(sources));
    if (!recorded) return y;
    auto found = c10::make_intrusive<GateGradients>();
    ctx->saved_data["found"] = c10::IValue::make_capsule(found);
    const auto make = [gate](const auto& from) { return values_of(gate(from)); };
    set_recipe(y, sources, make, [gate, found](const auto& from, const at::Tensor& gradient) {
      const auto again = at::empty(from[0].sizes(), from[0].options());
      find_gradients(gate(from), gradient, again, *found);
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
    if (!found->of.is_same(grads[0])) {
      const auto activation = static_cast<Activation>(ctx->saved_data["activation"].toInt());
      find_gradients({saved[0], saved.size() > 1 ? saved[1] : at::Tensor(), activation}, grads[0].contiguous(), {},
                     *found);
    }
    found->of.reset();
    return {std::exchange(found->x, {}), std::exchange(found->up, {}), at::Tensor(), at::Tensor()};
  }
};

bool fits_kernel(const at::Tensor& x, Activation activation) {
  return (has_kernels(x) || tensor::has_device_kernels(x)) && x.scalar_type() != at::kDouble &&
         kernels::has_activation_kernel(activation);
}

at::Tensor composite_activation(const at::Tensor& x, Activation activation) {
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
      const auto r = at::relu(x);
      return at::mul(r, r);
    }
    case Activation::kTanh:
      return at::tanh(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
    case Activation::kIdentity:
      break;
    case Activation::kClippedGelu:
      return at::clamp(at::gelu(x), -10, 10);
    case Activation::kRelu6:
      return at::hardtanh(x, 0, 6);
    case Activation::kLeakyRelu:
      return at::leaky_relu(x);
    case Activation::kMish:
      return at::mish(x);
    case Activation::kLaplace: {  // transformers' LaplaceActivation
      constexpr double kMean = 0.707107, kSpread = 0.282095;
      return at::mul(at::erf(at::div(x - kMean, kSpread * std::numbers::sqrt2)) + 1.0, 0.5);
    }
  }
  return x;
}

}  // namespace

at::Tensor activate(const at::Tensor& x, Activation activation) {
  if (!fits_kernel(x, activation) || x.dim() == 0) return composite_activation(x, activation);
  const auto rows = x.dim() == 2 && x.stride(1) == 1 ? x : x.reshape({-1, x.size(-1)});
  const auto y = Gated::apply(rows.stride(1) == 1 ? rows : rows.contiguous(), std::nullopt, activation,
                              at::GradMode::is_enabled());
  return x.dim() == 2 ? y : y.view(x.sizes());
}

at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, Activation activation) {
  const bool rows = gate.dim() == 2 && gate.stride(1) == 1 && up.stride(1) == 1 && gate.dtype() == up.dtype();
  if (rows && fits_kernel(gate, activation)) return Gated::apply(gate, up, activation, at::GradMode::is_enabled());
  return recomputed_in_backward({activate(gate, activation), up}, [](const auto& s) { return at::mul(s[0], s[1]); });
}

}  // namespace tessera::nn
