#include "tessera/nn/dropout.h"

#include "nn/ops/dropout_ops.h"
#include "tessera/base/error.h"

namespace tessera::nn {

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0.0 && p <= 1.0)) {
    throw ConfigError("dropout probability " + std::to_string(p) + " is not in [0, 1]", "dropout");
  }
}

std::string Dropout::extra_repr() const {
  char text[48];
  std::snprintf(text, sizeof text, "p=%g, inplace=False", p_);
  return text;
}

at::Tensor Dropout::add_to(const at::Tensor& residual, const at::Tensor& x) const {
  return dropout_add(residual, x, active_p());
}

at::Tensor Dropout::forward_impl(at::Tensor x) {
  return dropout(x, active_p());
}

}  // namespace tessera::nn
