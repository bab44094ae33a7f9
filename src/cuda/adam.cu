#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

template <int N>
__device__ __forceinline__ void store_low(const DeviceAdam& a, std::int64_t at, const float (&p)[N]) {
  if (a.low_dtype == kDeviceBFloat16)
    store<BFloat16, N>(static_cast<BFloat16*>(a.low) + at, p);
  else if (a.low_dtype == kDeviceHalf)
    store<Half, N>(static_cast<Half*>(a.low) + at, p);
  else
    store<float, N>(static_cast<float*>(a.low) + at, p);
}

/// N elements a thread; the tail of fewer than N element by element, one a thread of the first block.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) adam_kernel(DeviceAdam a, AdamNumbers u) {
  const float factor = a.factor == nullptr ? 1.0f : *a.factor;
  const auto step = [&]<int M>(std::int64_t at) {
    float g[M], p[M], m[M], v[M];
    load<T, M>(static_cast<const T*>(a.gradient) + at, g);
    load<float, M>(a.p + at, p);
    load<float, M>(a.m + at, m);
    load<float, M>(a.v + at, v);
#pragma unroll
    for (int k = 0; k < M; ++k) adam_step(u, mul(g[k], factor), p[k], m[k], v[k]);
    store<float, M>(a.p + at, p);
    store<float, M>(a.m + at, m);
    store<float, M>(a.v + at, v);
    if (a.low != nullptr) store_low<M>(a, at, p);
  };
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, whole = a.numel / N;
  if (i < whole) step.template operator()<N>(i * N);
  if constexpr (N > 1) {
    if (i < a.numel - whole * N) step.template operator()<1>(whole * N + i);
  }
}

template <class T, int N>
int launch(const DeviceAdam& a, void* stream) {
  const auto blocks = blocks_of(blocks_of(a.numel, N), kThreads);
  if (blocks >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  adam_kernel<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(stream)>>>(a, adam_numbers(a));
  return launched();
}

}  // namespace

int adam(void* stream, const DeviceAdam* args) {
  const auto& a = *args;
  if (a.numel <= 0) return 0;
  return with_dtype(a.gradient_dtype, [&]<class T>() {
    constexpr int kN = 4;
    const bool wide = aligned(a.p) && aligned(a.m) && aligned(a.v) && aligned(a.gradient, kN * sizeof(T)) &&
                      aligned(a.low, a.low_dtype == kDeviceFloat ? 16 : 8);
    return wide ? launch<T, kN>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace tessera::cuda
