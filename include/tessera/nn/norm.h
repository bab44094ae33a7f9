#pragma once
#include <cstdint>
#include <string>

#include "tessera/nn/block.h"

namespace tessera::nn {

/// Root mean square norm (Zhang and Sennrich 2019): y = w * x / sqrt(mean(x^2) + eps), statistics in float32. x: [...,
/// dim].
class RmsNorm : public Layer {
 public:
  RmsNorm(std::int64_t dim, double eps, std::string class_name = "RMSNorm", at::ScalarType dtype = at::kFloat);
  std::string class_name() const override { return class_name_; }
  std::string extra_repr() const override;

  at::Tensor weight;  // [dim]

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  double eps_;
  std::string class_name_;
};

}  // namespace tessera::nn
