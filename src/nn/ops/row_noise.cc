#include "nn/ops/row_noise.h"

#include <ATen/ops/empty.h>

#include "tensor/rng.h"

namespace tessera::nn {

at::Tensor row_noise(std::int64_t rows, std::int64_t n, tensor::RandomKey draw) {
  const auto& keys = tensor::random_state().rows;
  const auto* key = keys.defined() && keys.numel() == rows ? keys.const_data_ptr<std::int64_t>() : nullptr;
  auto out = at::empty({rows, n}, at::kFloat);
  for (std::int64_t row = 0; row < rows; ++row)
    tensor::fill_normal(out[row], tensor::row_key(draw, key ? key[row] : row), 0, 1);
  return out;
}

}  // namespace tessera::nn
