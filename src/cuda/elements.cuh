#pragma once
// What kernels share: elements of the three dtypes as float32, 16 bytes at a time, and the shapes of launches.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "base/device_kernels.h"

namespace tessera::cuda {

using BFloat16 = __nv_bfloat16;
using Half = __half;

constexpr int kThreads = 256;  // of a block, where no kernel says otherwise

/// Elements of 16 bytes.
template <class T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ float widened(float x) {
  return x;
}
__device__ __forceinline__ float widened(BFloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float widened(Half x) {
  return __half2float(x);
}

template <class T>
__device__ __forceinline__ T narrowed(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return __float2bfloat16_rn(x);
  else
    return __float2half_rn(x);
}

/// Two elements of 16 bits in a word, the first in its lower half.
template <class T>
__device__ __forceinline__ float2 widened_pair(std::uint32_t word) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
  else
    return __half22float2(__halves2half2(__ushort_as_half(static_cast<unsigned short>(word)),
                                         __ushort_as_half(static_cast<unsigned short>(word >> 16))));
}
template <class T>
__device__ __forceinline__ std::uint32_t narrowed_pair(float a, float b) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const auto pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

/// The bits of N elements: as many as one instruction moves.
template <int kBytes>
struct alignas(kBytes) Bits {
  std::uint32_t words[kBytes / 4];
};
template <class T, int N>
using BitsOf = Bits<N* static_cast<int>(sizeof(T))>;

template <int kBytes>
__device__ __forceinline__ Bits<kBytes> load_bits(const void* from) {
  Bits<kBytes> bits;
  if constexpr (kBytes == 16) {
    const auto x = *static_cast<const uint4*>(from);
    bits.words[0] = x.x, bits.words[1] = x.y, bits.words[2] = x.z, bits.words[3] = x.w;
  } else {
    static_assert(kBytes == 8);
    const auto x = *static_cast<const uint2*>(from);
    bits.words[0] = x.x, bits.words[1] = x.y;
  }
  return bits;
}
template <int kBytes>
__device__ __forceinline__ void store_bits(void* to, const Bits<kBytes>& bits) {
  if constexpr (kBytes == 16) {
    *static_cast<uint4*>(to) = {bits.words[0], bits.words[1], bits.words[2], bits.words[3]};
  } else {
    static_assert(kBytes == 8);
    *static_cast<uint2*>(to) = {bits.words[0], bits.words[1]};
  }
}

template <class T, int N>
__device__ __forceinline__ void widen(const BitsOf<T, N>& bits, float (&to)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if constexpr (std::is_same_v<T, float>) {
      to[k] = __uint_as_float(bits.words[k]);
    } else if (k % 2 == 0) {
      const float2 pair = widened_pair<T>(bits.words[k / 2]);
      to[k] = pair.x, to[k + 1] = pair.y;
    }
  }
}
template <class T, int N>
__device__ __forceinline__ BitsOf<T, N> narrow(const float (&from)[N]) {
  BitsOf<T, N> bits;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if constexpr (std::is_same_v<T, float>)
      bits.words[k] = __float_as_uint(from[k]);
    else if (k % 2 == 0)
      bits.words[k / 2] = narrowed_pair<T>(from[k], from[k + 1]);
  }
  return bits;
}

/// N elements, aligned to their bytes.
template <class T, int N>
__device__ __forceinline__ void load(const T* from, float (&to)[N]) {
  if constexpr (N == 1)
    to[0] = widened(*from);
  else
    widen<T, N>(load_bits<N* static_cast<int>(sizeof(T))>(from), to);
}
template <class T, int N>
__device__ __forceinline__ void store(T* to, const float (&from)[N]) {
  if constexpr (N == 1)
    *to = narrowed<T>(from[0]);
  else
    store_bits(to, narrow<T, N>(from));
}

inline bool aligned(const void* p, std::uintptr_t bytes = 16) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

inline std::int64_t blocks_of(std::int64_t numel, std::int64_t block) {
  return (numel + block - 1) / block;
}

inline cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

/// What became of a launch: an error is forgotten here, so that the next launch does not tell it again.
inline int launched() {
  return cudaGetLastError();
}

/// f<T>() with the dtype's type.
template <class F>
int with_dtype(DeviceDtype dtype, const F& f) {
  switch (dtype) {
    case kDeviceFloat:
      return f.template operator()<float>();
    case kDeviceBFloat16:
      return f.template operator()<BFloat16>();
    case kDeviceHalf:
      return f.template operator()<Half>();
  }
  return cudaErrorInvalidValue;
}

/// Rows of units, one unit a thread: the second dimension of the grid has parts of so many rows that an index in one
/// has 31 bits.
struct RowGrid {
  std::int64_t rows = 0, part = 0;  // part: rows
  std::uint32_t units = 0;          // of a row

  RowGrid(std::int64_t rows, std::int64_t units) : rows(rows) {
    constexpr std::int64_t kMost = (std::int64_t{1} << 31) - kThreads;
    if (units > kMost) return;  // no part: launch_rows() refuses
    this->units = static_cast<std::uint32_t>(units);
    part = std::min(rows, kMost / units);
  }
  dim3 blocks() const {
    return {static_cast<unsigned>(blocks_of(part * units, kThreads)), static_cast<unsigned>(blocks_of(rows, part)), 1};
  }

  /// This thread's unit, if there is one.
  __device__ __forceinline__ bool place(std::int64_t& row, std::uint32_t& unit) const {
    const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x, r = i / units;
    unit = i - r * units;
    row = blockIdx.y * part + r;
    return r < part && row < rows;
  }
};

template <class Args>
int launch_rows(void (*kernel)(Args, RowGrid), const RowGrid& grid, const Args& args, void* stream) {
  if (grid.part == 0) return cudaErrorInvalidValue;
  kernel<<<grid.blocks(), kThreads, 0, stream_of(stream)>>>(args, grid);
  return launched();
}

/// The elements of a row before, in and after its whole 16 bytes.
template <class T>
struct Runs {
  std::int64_t head, vectors, tail;

  __device__ __forceinline__ Runs(const T* x, std::int64_t n) {
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x) % 16 / sizeof(T));
    head = past == 0 ? 0 : kWide<T> - past;
    if (head > n) head = n;
    vectors = (n - head) / kWide<T>;
    tail = n - head - vectors * kWide<T>;
  }
  /// The k-th element that is in no vector.
  __device__ __forceinline__ std::int64_t edge(std::int64_t k) const { return k < head ? k : k + vectors * kWide<T>; }
};

/// f(bits, vector) for the vectors of `body` that are this thread's, several of them read before the first is used.
/// threads: of the block.
template <int kUnroll, class T, class F>
__device__ __forceinline__ void for_vectors(const T* body, std::int64_t vectors, std::int64_t threads, const F& f) {
  std::int64_t i = threadIdx.x;
  for (; i + (kUnroll - 1) * threads < vectors; i += kUnroll * threads) {
    Bits<16> bits[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) bits[k] = load_bits<16>(body + (i + k * threads) * kWide<T>);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) f(bits[k], i + k * threads);
  }
  for (; i < vectors; i += threads) f(load_bits<16>(body + i * kWide<T>), i);
}

}  // namespace tessera::cuda
