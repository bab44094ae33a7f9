#pragma once
// A step of a rule on another device than the CPU, by libtorch's operators: to within rounding what update_range()
// does.
#include <ATen/core/Tensor.h>

#include <array>

#include "tessera/optim/update.h"

namespace tessera::optim {

/// Of one range of a parameter: 1-D, equally long, on one device; `states` undefined where the rule has none. Each may
/// have another floating dtype; the arithmetic is that of float32, or of float64 for such parameters. ConfigError for a
/// rule of one's own.
void update_on_device(const Update& update, const at::Tensor& parameter, const at::Tensor& gradient,
                      const std::array<at::Tensor, kMaxStates>& states);

/// The factor of the gradient, for a kernel on the gradient's device: float32 [1]; undefined where it is 1.
at::Tensor factor_there(const Update& update, const at::Tensor& gradient);

/// Whether one launch may do both; rules of one's own are called for each.
bool takes_same_step(const Update& a, const Update& b);

}  // namespace tessera::optim
