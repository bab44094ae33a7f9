#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"
#include "tensor/random_bits.h"

namespace tessera::cuda {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(kThreads) dropout_kernel(DeviceDropout a, RowGrid grid) {
  std::int64_t row;
  std::uint32_t unit;
  if (!grid.place(row, unit)) return;
  const std::uint32_t first = unit * N;
  const std::int64_t at = row * a.n + first;
  float x[N], base[N];
  load<T, N>(static_cast<const T*>(a.x) + at, x);
  if (a.base != nullptr) load<T, N>(static_cast<const T*>(a.base) + at, base);
  const tensor::RandomKey key{a.keys[2 * row] ^ a.draw_a, a.keys[2 * row + 1] ^ a.draw_b};
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = mul(x[k], tensor::random_bits(key, first + k) >= a.threshold ? a.scale : 0.0f);
  if (a.base != nullptr) {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = add(base[k], x[k]);
  }
  store<T, N>(static_cast<T*>(a.y) + at, x);
}

}  // namespace

int dropout(void* stream, const DeviceDropout* args) {
  const auto& a = *args;
  if (a.rows <= 0 || a.n <= 0) return 0;
  return with_dtype(a.dtype, [&]<class T>() {
    constexpr int kN = kWide<T>;
    if (a.n % kN == 0 && aligned(a.x) && aligned(a.base) && aligned(a.y))
      return launch_rows(dropout_kernel<T, kN>, RowGrid(a.rows, a.n / kN), a, stream);
    return launch_rows(dropout_kernel<T, 1>, RowGrid(a.rows, a.n), a, stream);
  });
}

}  // namespace tessera::cuda
