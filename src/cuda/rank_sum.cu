#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

template <class T, class Out, int N>
__global__ void __launch_bounds__(kThreads) rank_sum_kernel(DeviceRankSum a) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (at >= a.numel) return;
  const T* from = static_cast<const T*>(a.inputs) + at;
  float sum[N], x[N];
  load<T, N>(from, sum);
  for (std::int64_t k = 1; k < a.count; ++k) {
    load<T, N>(from + k * a.numel, x);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = add(sum[i], x[i]);
  }
  Out* to = static_cast<Out*>(a.out) + at;
  if (a.accumulate) load<Out, N>(to, x);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[i] = mul(sum[i], a.scale);
    if (a.accumulate) sum[i] = add(sum[i], x[i]);
  }
  store<Out, N>(to, sum);
}

}  // namespace

int rank_sum(void* stream, const DeviceRankSum* args) {
  const auto& a = *args;
  if (a.count <= 0 || a.numel <= 0) return 0;
  return with_dtype(a.dtype, [&]<class T>() {
    return with_dtype(a.out_dtype, [&]<class Out>() {
      constexpr int kN = 4;
      const auto fits = [&](const void* p, std::size_t size) { return aligned(p, kN * size); };
      const bool wide = a.numel % kN == 0 && fits(a.inputs, sizeof(T)) && fits(a.out, sizeof(Out));
      const auto blocks = blocks_of(a.numel, kThreads * (wide ? kN : 1));
      if (blocks > 0x7FFFFFFF) return static_cast<int>(cudaErrorInvalidValue);
      if (wide)
        rank_sum_kernel<T, Out, kN><<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(stream)>>>(a);
      else
        rank_sum_kernel<T, Out, 1><<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(stream)>>>(a);
      return launched();
    });
  });
}

}  // namespace tessera::cuda
