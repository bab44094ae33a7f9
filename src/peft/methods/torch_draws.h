#pragma once
// Values that a seed in the configuration decides: torch's generator draws them, so that they are PEFT's.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::peft {

/// torch.Generator().manual_seed(seed), with what the methods draw from it.
class TorchDraws {
 public:
  explicit TorchDraws(std::int64_t seed);
  /// torch.empty(sizes, dtype).uniform_(low, high)
  at::Tensor uniform(at::IntArrayRef sizes, double low, double high, at::ScalarType dtype = at::kFloat);
  /// torch.randn(sizes, dtype)
  at::Tensor normal(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);
  /// torch.randperm(n)
  at::Tensor permutation(std::int64_t n);

 private:
  at::Generator generator_;
};

}  // namespace tessera::peft
