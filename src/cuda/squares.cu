#include "cuda/elements.cuh"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

constexpr int kSumThreads = 512, kUnroll = 4;  // vectors that a thread reads at a time

/// The sum over the block, in its first thread, always added in the same order.
__device__ double block_sum(double x) {
  __shared__ double of_warp[kSumThreads / 32];
  for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(~0u, x, k);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  x = threadIdx.x < kSumThreads / 32 ? of_warp[threadIdx.x] : 0.0;
  for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(~0u, x, k);
  return x;
}

/// A part a block.
template <class T>
__global__ void __launch_bounds__(kSumThreads) squares_kernel(DeviceSquares a, std::int64_t part) {
  constexpr int kN = kWide<T>;
  const std::int64_t begin = min(blockIdx.x * part, a.numel), n = min(part, a.numel - begin);
  const T* x = static_cast<const T*>(a.x) + begin;
  const Runs<T> runs(x, n);
  const T* body = x + runs.head;
  double sum = 0;
  const auto take = [&](const Bits<16>& bits, std::int64_t) {
    float values[kN];
    widen<T, kN>(bits, values);
#pragma unroll
    for (int k = 0; k < kN; ++k) sum = fma(static_cast<double>(values[k]), static_cast<double>(values[k]), sum);
  };
  for_vectors<kUnroll>(body, runs.vectors, kSumThreads, take);
  if (threadIdx.x < runs.head + runs.tail) {
    const double value = widened(x[runs.edge(threadIdx.x)]);
    sum = fma(value, value, sum);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) a.sums[blockIdx.x] = sum;
}

}  // namespace

int squares(void* stream, const DeviceSquares* args) {
  const auto& a = *args;
  if (a.parts <= 0) return 0;
  if (a.parts >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  return with_dtype(a.dtype, [&]<class T>() {
    squares_kernel<T>
        <<<static_cast<unsigned>(a.parts), kSumThreads, 0, stream_of(stream)>>>(a, blocks_of(a.numel, a.parts));
    return launched();
  });
}

}  // namespace tessera::cuda
