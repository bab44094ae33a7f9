#include <bit>

#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

struct Table {
  float values[16];
};

/// b is 2^shift_of(b), or that is -1.
int shift_of(std::int64_t b) {
  const auto bits = static_cast<std::uint64_t>(b);
  return std::has_single_bit(bits) ? std::countr_zero(bits) : -1;
}

template <bool kNested>
struct ScaleOf {
  const float* absmax;
  const std::uint8_t* codes;
  const float *map, *offset;

  explicit ScaleOf(const DeviceFourBit& a)
      : absmax(kNested ? a.nested_absmax : a.absmax), codes(a.absmax_codes), map(a.map), offset(a.nested_offset) {}

  /// nested: the block's block.
  __device__ __forceinline__ float operator()(std::int64_t block, std::int64_t nested) const {
    if constexpr (kNested)
      return add(mul(map[codes[block]], absmax[nested]), *offset);
    else
      return absmax[block];
  }
};

/// 16 values in as many banks of shared memory: no two look-ups of a warp are in each other's way.
__device__ __forceinline__ const float* shared_table(const Table& table) {
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = table.values[threadIdx.x];
  __syncthreads();
  return values;
}

__device__ __forceinline__ float value_of(const float* table, std::uint32_t byte, int k) {
  return table[k % 2 == 0 ? byte >> 4 : byte & 15u];
}

constexpr int kUnits = 4;  // of a thread, each of 16 bytes of values, which lie in one block

/// Blocks of 2^shift elements, nested ones of 2^nested_shift blocks; there is a whole unit.
template <class T, bool kNested>
__global__ void __launch_bounds__(kThreads) four_bit_kernel(DeviceFourBit a, const __grid_constant__ Table host_table,
                                                            ScaleOf<kNested> scale, int shift, int nested_shift) {
  constexpr int kN = kWide<T>;
  using Codes = std::conditional_t<kN == 8, std::uint32_t, std::uint16_t>;
  const float* table = shared_table(host_table);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * (kThreads * kUnits) + threadIdx.x,
                     whole = a.numel / kN;
  std::uint32_t codes[kUnits];
  float scales[kUnits];
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    const auto unit = min(first + k * kThreads, whole - 1);
    const auto block = unit * kN >> shift;
    codes[k] = reinterpret_cast<const Codes*>(a.codes)[unit];
    scales[k] = scale(block, block >> nested_shift);
  }
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    const auto unit = first + k * kThreads;
    if (unit >= whole) break;
    float values[kN];
#pragma unroll
    for (int j = 0; j < kN; ++j) values[j] = mul(value_of(table, codes[k] >> (8 * (j / 2)) & 255u, j), scales[k]);
    store<T, kN>(static_cast<T*>(a.values) + unit * kN, values);
  }
  const auto i = whole * kN + first;
  if (i >= a.numel) return;
  const auto block = i >> shift;
  static_cast<T*>(a.values)[i] =
      narrowed<T>(mul(value_of(table, a.codes[i / 2], static_cast<int>(i & 1)), scale(block, block >> nested_shift)));
}

/// For pointers and blocks that are not as the other kernel needs them.
template <class T, bool kNested>
__global__ void __launch_bounds__(kThreads)
    four_bit_one_kernel(DeviceFourBit a, const __grid_constant__ Table host_table, ScaleOf<kNested> scale) {
  const float* table = shared_table(host_table);
  const auto i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.numel) return;
  const auto block = i / a.block;
  const auto nested = kNested ? block / a.nested_block : 0;
  static_cast<T*>(a.values)[i] =
      narrowed<T>(mul(value_of(table, a.codes[i / 2], static_cast<int>(i & 1)), scale(block, nested)));
}

template <class T, bool kNested>
int launch(const DeviceFourBit& a, void* stream) {
  constexpr int kN = kWide<T>;
  Table table;
  std::copy_n(a.table, 16, table.values);
  const ScaleOf<kNested> scale(a);
  const int shift = shift_of(a.block), nested_shift = kNested ? shift_of(a.nested_block) : 0;
  const bool wide = a.numel >= kN && shift >= 0 && nested_shift >= 0 && a.block >= kN && aligned(a.values) &&
                    aligned(a.codes, kN / 2);
  const auto blocks = wide ? blocks_of(a.numel / kN, kThreads * kUnits) : blocks_of(a.numel, kThreads);
  if (blocks >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  const auto grid = static_cast<unsigned>(blocks);
  if (wide)
    four_bit_kernel<T, kNested><<<grid, kThreads, 0, stream_of(stream)>>>(a, table, scale, shift, nested_shift);
  else
    four_bit_one_kernel<T, kNested><<<grid, kThreads, 0, stream_of(stream)>>>(a, table, scale);
  return launched();
}

}  // namespace

int four_bit(void* stream, const DeviceFourBit* args) {
  const auto& a = *args;
  if (a.numel <= 0) return 0;
  return with_dtype(a.dtype, [&]<class T>() {
    return a.absmax == nullptr ? launch<T, true>(a, stream) : launch<T, false>(a, stream);
  });
}

}  // namespace tessera::cuda
