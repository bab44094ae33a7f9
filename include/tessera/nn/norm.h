#pragma once
#include <cstdint>
#include <string>

#include "tessera/nn/block.h"

namespace tessera::nn {

/// Root mean square norm (Zhang and Sennrich 2019): y = w * x / sqrt(mean(x^2) + eps), statistics in float32. x: [...,
/// dim].
class RmsNorm : public Layer {
 public:
  /// offset is added to the weight (Gemma keeps w - 1).
  RmsNorm(std::int64_t dim, double eps, std::string class_name = "RMSNorm", at::ScalarType dtype = at::kFloat,
          double offset = 0.0);
  std::string class_name() const override { return class_name_; }
  std::string extra_repr() const override;

  at::Tensor weight;  // [dim]

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  double eps_;
  std::string class_name_;
  double offset_;
};

/// Layer norm (Ba et al. 2016): y = w * (x - mean) / sqrt(var + eps) + b, statistics in float32. x: [..., dim].
class LayerNorm : public Layer {
 public:
  /// affine: has weight and bias.
  LayerNorm(std::int64_t dim, double eps, at::ScalarType dtype = at::kFloat, bool affine = true);
  std::string class_name() const override { return "LayerNorm"; }
  std::string extra_repr() const override;

  at::Tensor weight, bias;  // [dim], undefined without affine

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  std::int64_t dim_;
  double eps_;
};

}  // namespace tessera::nn
