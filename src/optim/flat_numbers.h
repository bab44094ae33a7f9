#pragma once
// A flat tensor of any floating dtype (or in halves), read and written as float32 a block at a time.
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tensor/split_floats.h"

namespace tessera::optim {

struct FlatNumbers {
  void* data = nullptr;  // of the first element
  at::ScalarType dtype = at::kFloat;
  const tensor::SplitFloats* halves = nullptr;  // where there are: instead of data

  /// Of elements [at, at + count): the memory itself if it is float32, else `buffer` with their values.
  float* read(std::int64_t at, std::int64_t count, float* buffer) const;
  /// `values`: what read() gave.
  void write(std::int64_t at, std::int64_t count, const float* values) const;
};

}  // namespace tessera::optim
