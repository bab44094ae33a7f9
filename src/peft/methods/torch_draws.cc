#include "peft/methods/torch_draws.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/uniform.h>

namespace tessera::peft {

TorchDraws::TorchDraws(std::int64_t seed)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed))) {}

at::Tensor TorchDraws::uniform(at::IntArrayRef sizes, double low, double high, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions().dtype(dtype)).uniform_(low, high, generator_);
}

at::Tensor TorchDraws::normal(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, generator_, at::TensorOptions().dtype(dtype));
}

at::Tensor TorchDraws::permutation(std::int64_t n) {
  return at::randperm(n, generator_, at::TensorOptions().dtype(at::kLong));
}

}  // namespace tessera::peft
