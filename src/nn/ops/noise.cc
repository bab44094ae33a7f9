#include "nn/ops/noise.h"
#include "nn/ops/device.h"

#include <ATen/ops/empty.h>

#include "nn/ops/rows.h"
#include "tensor/device.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::nn {

at::Tensor uniform_noise(const at::Tensor& x, const at::Tensor& range) {
  TESSERA_CHECK(x.dim() == 2 && range.numel() == x.size(0), "noise is for [T, D] and a range for each row");
  if (!has_kernels(x)) {
    const auto here = at::empty(x.sizes(), x.options().device(at::kCPU));
    return tensor::to_device(uniform_noise(here, tensor::on_host(range)), x.device());
  }
  const std::int64_t size = x.size(1);
  const auto out = at::empty(x.sizes(), x.options());
  const auto key = tensor::next_key();
  const auto& rows = tensor::random_state().rows;
  const std::int64_t* keys =
      rows.defined() && rows.numel() == x.size(0) ? rows.const_data_ptr<std::int64_t>() : nullptr;
  const float* limits = range.const_data_ptr<float>();
  for_rows(x.size(0), size, [&](std::int64_t first, std::int64_t last) {
    WriteRow result(out, size);
    for (std::int64_t t = first; t < last; ++t) {
      const auto own = tensor::row_key(key, keys ? keys[t] : t);
      float* row = result.at(t * size);
      for (std::int64_t i = 0; i < size; ++i) {
        const auto bits = tensor::random_bits(own, static_cast<std::uint32_t>(i));
        row[i] = limits[t] * (static_cast<float>(bits) * 0x1p-31f - 1.0f);
      }
      result.store();
    }
  });
  return out;
}

}  // namespace tessera::nn
