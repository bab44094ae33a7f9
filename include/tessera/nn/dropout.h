#pragma once
#include <string>

#include "tessera/nn/block.h"

namespace tessera::nn {

/// Zeroes elements with probability p and scales the others by 1 / (1 - p), in training mode only. Masks are drawn from
/// this thread's counter-based stream and drawn again in backward: nothing is stored.
class Dropout : public Layer {
 public:
  /// ConfigError unless 0 <= p <= 1.
  explicit Dropout(double p);
  std::string class_name() const override { return "Dropout"; }
  std::string extra_repr() const override;
  /// The probability that applies now: 0 in eval mode.
  double active_p() const { return is_training() ? p_ : 0.0; }
  /// residual + dropout(x) in one pass.
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& x) const;

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  double p_;
};

}  // namespace tessera::nn
