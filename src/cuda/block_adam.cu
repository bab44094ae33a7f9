#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

constexpr int kLanes = 32, kWarps = kThreads / kLanes;
constexpr int kUnit = 4;          // elements that a lane has side by side
constexpr int kBlocksOfWarp = 8;  // one after the other, so that tables are read once for them

/// What codes stand for, and the thresholds between them as a tree, level by level: lanes at one level of their
/// searches read neighbours, so few of them are in each other's way.
template <int kBits>
struct Map {
  static constexpr int kCodes = 1 << kBits;
  float values[kCodes], nodes[kCodes];  // the root is node 1, below node i are 2 i and 2 i + 1

  __device__ __forceinline__ void fill(const DeviceMoment& from) {
    for (int i = threadIdx.x; i < kCodes; i += kThreads) {
      values[i] = from.values[i];
      if (i > 0) nodes[(kCodes + i) >> __ffs(i)] = from.thresholds[i - 1];
    }
  }
  /// How many thresholds are no larger; 0 for NaN.
  __device__ __forceinline__ std::uint32_t code_of(float x) const {
    std::uint32_t node = 1;
#pragma unroll
    for (int level = 0; level < kBits; ++level) node = 2 * node + (x >= nodes[node] ? 1 : 0);
    return node - kCodes;
  }
};

/// Where the k-th code of a unit begins in a word of their bytes.
template <int kBits>
__device__ constexpr int bit_of(int k) {
  return kBits == 8 ? 8 * k : 8 * (k / 2) + 4 * (1 - k % 2);
}

// A unit at once where kWhole, else its first `count` elements: loads have zeros for the others.

template <bool kWhole, class T>
__device__ __forceinline__ void load_unit(const T* from, int count, float (&to)[kUnit]) {
  if constexpr (kWhole) {
    load<T, kUnit>(from, to);
  } else {
#pragma unroll
    for (int k = 0; k < kUnit; ++k) to[k] = k < count ? widened(from[k]) : 0.0f;
  }
}

template <bool kWhole>
__device__ __forceinline__ void store_unit(float* to, int count, const float (&from)[kUnit]) {
  if constexpr (kWhole) {
    store<float, kUnit>(to, from);
  } else {
#pragma unroll
    for (int k = 0; k < kUnit; ++k)
      if (k < count) to[k] = from[k];
  }
}

template <int kBits>
using Word = std::conditional_t<kBits == 8, std::uint32_t, std::uint16_t>;

template <bool kWhole, int kBits>
__device__ __forceinline__ std::uint32_t load_codes(const std::uint8_t* from, int count) {
  if constexpr (kWhole) {
    return *reinterpret_cast<const Word<kBits>*>(from);
  } else {
    std::uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < kUnit * kBits / 8; ++k)
      if (8 * k < kBits * count) word |= static_cast<std::uint32_t>(from[k]) << 8 * k;
    return word;
  }
}

template <bool kWhole, int kBits>
__device__ __forceinline__ void store_codes(std::uint8_t* to, int count, std::uint32_t word) {
  if constexpr (kWhole) {
    *reinterpret_cast<Word<kBits>*>(to) = static_cast<Word<kBits>>(word);
  } else {
#pragma unroll
    for (int k = 0; k < kUnit * kBits / 8; ++k)
      if (8 * k < kBits * count) to[k] = static_cast<std::uint8_t>(word >> 8 * k);
  }
}

/// A lane's part of one block of a moment: every 32nd unit.
template <int kBits>
struct Moment {
  static constexpr int kUnits = kBits / 4;
  std::uint32_t words[kUnits];
  float x[kUnits][kUnit];

  /// Rounded once.
  __device__ __forceinline__ void decode(const Map<kBits>& map, float scale) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int k = 0; k < kUnit; ++k) x[u][k] = mul(map.values[words[u] >> bit_of<kBits>(k) & (map.kCodes - 1)], scale);
  }
  /// The block's scale; magnitudes are in order as whole numbers, NaN above all.
  __device__ __forceinline__ float scale(float least) const {
    std::uint32_t largest = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int k = 0; k < kUnit; ++k) largest = max(largest, __float_as_uint(fabsf(x[u][k])));
    const float absmax = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, largest));
    return absmax < least ? least : absmax;
  }
  template <class Rule>
  __device__ __forceinline__ void encode(const Map<kBits>& map, float scale) {
    const float measure = Rule::measure_of(scale);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      words[u] = 0;
#pragma unroll
      for (int k = 0; k < kUnit; ++k) words[u] |= map.code_of(Rule::measured(x[u][k], measure)) << bit_of<kBits>(k);
    }
  }
};

/// One block, by one warp.
template <bool kWhole, class T, int kBits, class Rule>
__device__ __forceinline__ void step_block(const DeviceBlockAdam& a, const Rule& rule, float factor,
                                           const Map<kBits>& m_map, const Map<kBits>& v_map, std::int64_t block) {
  constexpr int kUnits = Moment<kBits>::kUnits;
  const int lane = threadIdx.x % kLanes;
  float p[kUnits][kUnit], g[kUnits][kUnit];
  Moment<kBits> m, v;
  std::int64_t at[kUnits];
  int count[kUnits];
  const float m_scale = a.m.scales[block], v_scale = a.v.scales[block];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    at[u] = ((block * kUnits + u) * kLanes + lane) * kUnit;
    count[u] = kWhole ? kUnit : static_cast<int>(max(min(a.numel - at[u], std::int64_t{kUnit}), std::int64_t{0}));
    load_unit<kWhole>(a.p + at[u], count[u], p[u]);
    load_unit<kWhole>(static_cast<const T*>(a.gradient) + at[u], count[u], g[u]);
    m.words[u] = load_codes<kWhole, kBits>(a.m.codes + at[u] * kBits / 8, count[u]);
    v.words[u] = load_codes<kWhole, kBits>(a.v.codes + at[u] * kBits / 8, count[u]);
  }
  m.decode(m_map, m_scale), v.decode(v_map, v_scale);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (int k = 0; k < kUnit; ++k) {
      rule.step(mul(g[u][k], factor), p[u][k], m.x[u][k], v.x[u][k]);
      if (k >= count[u]) m.x[u][k] = v.x[u][k] = 0.0f;  // of no element: nothing to the block's scale
    }
    store_unit<kWhole>(a.p + at[u], count[u], p[u]);
  }
  const float new_m_scale = m.scale(a.least_scale), new_v_scale = v.scale(a.least_scale);
  m.template encode<Rule>(m_map, new_m_scale), v.template encode<Rule>(v_map, new_v_scale);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    store_codes<kWhole, kBits>(a.m.codes + at[u] * kBits / 8, count[u], m.words[u]);
    store_codes<kWhole, kBits>(a.v.codes + at[u] * kBits / 8, count[u], v.words[u]);
  }
  if (lane == 0) a.m.scales[block] = new_m_scale, a.v.scales[block] = new_v_scale;
}

/// wide: pointers are aligned to units.
template <class T, int kBits, class Rule>
__global__ void __launch_bounds__(kThreads)
    block_adam_kernel(DeviceBlockAdam a, Rule rule, std::int64_t blocks, bool wide) {
  __shared__ Map<kBits> m_map, v_map;
  m_map.fill(a.m), v_map.fill(a.v);
  __syncthreads();
  const float factor = a.factor == nullptr ? 1.0f : *a.factor;
  const std::int64_t whole = wide ? a.numel / (32 * kBits) : 0;
  auto block = static_cast<std::int64_t>(blockIdx.x) * (kWarps * kBlocksOfWarp) + threadIdx.x / kLanes;
  for (int n = 0; n < kBlocksOfWarp && block < blocks; ++n, block += kWarps) {
    if (block < whole)
      step_block<true, T>(a, rule, factor, m_map, v_map, block);
    else
      step_block<false, T>(a, rule, factor, m_map, v_map, block);
  }
}

template <class T, int kBits, class Rule>
int launch(const DeviceBlockAdam& a, void* stream) {
  const bool wide = aligned(a.p) && aligned(a.gradient, kUnit * sizeof(T)) && aligned(a.m.codes, kUnit * kBits / 8) &&
                    aligned(a.v.codes, kUnit * kBits / 8);
  const auto blocks = blocks_of(a.numel, 32 * kBits), grid = blocks_of(blocks, kWarps * kBlocksOfWarp);
  if (grid >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  block_adam_kernel<T, kBits>
      <<<static_cast<unsigned>(grid), kThreads, 0, stream_of(stream)>>>(a, Rule(a), blocks, wide);
  return launched();
}

}  // namespace

int block_adam(void* stream, const DeviceBlockAdam* args) {
  const auto& a = *args;
  if (a.numel <= 0) return 0;
  const bool one = a.codes_in_byte == 1, two = a.codes_in_byte == 2 && a.numel % 2 == 0;
  return with_dtype(a.gradient_dtype, [&]<class T>() -> int {
    if (a.rule == kDeviceBnbAdam && one) return launch<T, 8, BnbAdam>(a, stream);
    if (a.rule == kDeviceTorchaoAdam && one) return launch<T, 8, TorchaoAdam>(a, stream);
    if (a.rule == kDeviceTorchaoAdam && two) return launch<T, 4, TorchaoAdam>(a, stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace tessera::cuda
