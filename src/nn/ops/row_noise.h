#pragma once
// Normal numbers for the rows of a tensor. As in a dropout mask, those of a row depend on the draw and on the row's
// key.
#include <ATen/core/Tensor.h>

#include "tensor/random_bits.h"

namespace tessera::nn {

/// [rows, n], float32, on the CPU. draw: tensor::next_key() or one of its own.
at::Tensor row_noise(std::int64_t rows, std::int64_t n, tensor::RandomKey draw);

}  // namespace tessera::nn
