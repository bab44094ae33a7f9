#pragma once
// Activations of a row, alone or as gates, and their gradients, in one pass: float32, or bfloat16 (as its bits) that is
// converted in registers. Callers divide the work among threads.
#include <cstdint>

#include "base/layer_kinds.h"

namespace tessera::nn::kernels {

/// kSilu, kGelu, kGeluTanh, kQuickGelu and kReluSquared; the others may not be asked for.
bool has_activation_kernel(Activation activation);

/// value = activate(x) * up. up: null stands for ones.
template <class T>
struct ActivationRow {
  const T *x, *up;
  T* value;
  std::int64_t n;
};

/// gradient: of the value. Written: x_gradient, up_gradient where there is an up, and value where it is not null, with
/// the bits of the forward.
template <class T>
struct ActivationGradientRow {
  const T *gradient, *x, *up;
  T *x_gradient, *up_gradient, *value;
  std::int64_t n;
};

void activate(Activation activation, const ActivationRow<float>& row);
void activate(Activation activation, const ActivationRow<std::uint16_t>& row);
void activation_gradient(Activation activation, const ActivationGradientRow<float>& row);
void activation_gradient(Activation activation, const ActivationGradientRow<std::uint16_t>& row);

}  // namespace tessera::nn::kernels
