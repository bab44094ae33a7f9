#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

constexpr int kMostThreads = 1024;
/// Vectors that a thread reads at a time.
template <bool kCap>
constexpr int kUnrolled = kCap ? 2 : 4;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -1e30f;  // stands for no logit yet: its difference to others is no NaN

/// 2^x to two units of the last place, 0 below 2^-126.
__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// exp(x - shift): from here on shifts are kept times -log2(e), so that it is one multiplication and one exponential.
__device__ __forceinline__ float shifted_exp(float x, float minus_shift) {
  return exp2_of(fmaf(x, kLog2E, minus_shift));
}

/// What becomes of one logit.
template <bool kCap>
struct Logit {
  float scale, cap, inverse_cap;

  /// In units of the cap, if there is one.
  __device__ __forceinline__ float ratio(float raw) const {
    return kCap ? tanhf(mul(mul(raw, scale), inverse_cap)) : mul(raw, scale);
  }
  __device__ __forceinline__ float from_ratio(float r) const { return kCap ? mul(r, cap) : r; }
  __device__ __forceinline__ float operator()(float raw) const { return from_ratio(ratio(raw)); }
};

/// Of the logits z that a thread, a warp, the block saw.
struct Statistics {
  float largest = -INFINITY, sum = 0, total = 0;  // sum: of exp(z - top()); total: of z
  std::int64_t index = 0;                         // of the largest

  __device__ __forceinline__ float top() const { return fmaxf(largest, kLowest); }

  __device__ __forceinline__ void raise(float z, std::int64_t at) {
    const float before = top();
    largest = z, index = at;
    sum *= exp2_of((before - top()) * kLog2E);
  }
  __device__ __forceinline__ void add_one(float z, std::int64_t at) {
    if (z > largest || (z == largest && at < index)) raise(z, at);
    sum += shifted_exp(z, -top() * kLog2E);
    total += z;
  }
  /// Of rising indices.
  template <int N>
  __device__ __forceinline__ void add_vector(const float (&z)[N], std::int64_t at) {
    float high = z[0];
#pragma unroll
    for (int k = 1; k < N; ++k) high = fmaxf(high, z[k]);
    if (high > largest) {
      int first = N - 1;
#pragma unroll
      for (int k = N - 1; k >= 0; --k)
        if (z[k] == high) first = k;
      raise(high, at + first);
    }
    const float minus_top = -top() * kLog2E;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sum += shifted_exp(z[k], minus_top);
      total += z[k];
    }
  }
  __device__ __forceinline__ void merge(float other_largest, float other_sum, float other_total,
                                        std::int64_t other_index) {
    const float before = top(), other_top = fmaxf(other_largest, kLowest);
    if (other_largest > largest || (other_largest == largest && other_index < index))
      largest = other_largest, index = other_index;
    // Rounded so that both lanes of a pair have the same bits.
    sum = add(mul(sum, exp2_of((before - top()) * kLog2E)), mul(other_sum, exp2_of((other_top - top()) * kLog2E)));
    total += other_total;
  }
  __device__ __forceinline__ void merge_warp() {
    for (int k = 16; k > 0; k /= 2) {
      const float l = __shfl_xor_sync(~0u, largest, k), s = __shfl_xor_sync(~0u, sum, k),
                  t = __shfl_xor_sync(~0u, total, k);
      const std::int64_t i = __shfl_xor_sync(~0u, index, k);
      merge(l, s, t, i);
    }
  }
};

template <class T, bool kCap>
__device__ __forceinline__ Statistics read_row(const T* x, const Runs<T>& runs, const Logit<kCap>& logit) {
  constexpr int kN = kWide<T>;
  Statistics found;
  const T* body = x + runs.head;
  const auto take = [&](const Bits<16>& bits, std::int64_t vector) {
    float z[kN];
    widen<T, kN>(bits, z);
#pragma unroll
    for (int k = 0; k < kN; ++k) z[k] = logit(z[k]);
    found.add_vector(z, runs.head + vector * kN);
  };
  for_vectors<kUnrolled<kCap>>(body, runs.vectors, blockDim.x, take);
  if (threadIdx.x < runs.head + runs.tail) {
    const auto at = runs.edge(threadIdx.x);
    found.add_one(logit(widened(x[at])), at);
  }
  return found;
}

/// Of a row, for its gradient.
template <bool kCap>
struct Gradient {
  Logit<kCap> logit;
  float minus_lse, everywhere, at_label, factor;  // (p + everywhere, and at_label more there) * factor
  std::int64_t label;

  __device__ __forceinline__ float operator()(float raw, std::int64_t at) const {
    const float r = logit.ratio(raw), p = shifted_exp(logit.from_ratio(r), minus_lse);
    const float g = (p + everywhere + (at == label ? at_label : 0.0f)) * factor;
    return kCap ? g * (1.0f - r * r) : g;
  }
  template <int N>
  __device__ __forceinline__ void vector(float (&x)[N], std::int64_t at) const {
    float raw_label = 0;
    const auto place = label - at;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k == place) raw_label = x[k];
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float r = logit.ratio(x[k]);
      x[k] = (shifted_exp(logit.from_ratio(r), minus_lse) + everywhere) * factor;
      if (kCap) x[k] *= 1.0f - r * r;
    }
    if (place < 0 || place >= N) return;
    const float here = (*this)(raw_label, label);
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (k == place) x[k] = here;
  }
};

/// x = f(x, at) of all elements.
template <class T, bool kCap>
__device__ __forceinline__ void write_row(T* x, const Runs<T>& runs, const Gradient<kCap>& f) {
  constexpr int kN = kWide<T>;
  T* body = x + runs.head;
  const auto put = [&](const Bits<16>& bits, std::int64_t vector) {
    float values[kN];
    widen<T, kN>(bits, values);
    f.template vector<kN>(values, runs.head + vector * kN);
    store<T, kN>(body + vector * kN, values);
  };
  for_vectors<kUnrolled<kCap>>(body, runs.vectors, blockDim.x, put);
  if (threadIdx.x < runs.head + runs.tail) {
    const auto at = runs.edge(threadIdx.x);
    x[at] = narrowed<T>(f(widened(x[at]), at));
  }
}

template <class T>
__device__ __forceinline__ void clear_row(T* x, const Runs<T>& runs) {
  T* body = x + runs.head;
  for (std::int64_t i = threadIdx.x; i < runs.vectors; i += blockDim.x) store_bits(body + i * kWide<T>, Bits<16>{});
  if (threadIdx.x < runs.head + runs.tail) x[runs.edge(threadIdx.x)] = narrowed<T>(0.0f);
}

/// Of the block, for each of its threads.
__device__ Statistics merge_block(Statistics found) {
  __shared__ Statistics of_warp[kMostThreads / 32];
  found.merge_warp();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = found;
  __syncthreads();
  found = threadIdx.x % 32 < blockDim.x / 32 ? of_warp[threadIdx.x % 32] : Statistics{};
  found.merge_warp();
  return found;
}

/// A row a block.
template <class T, bool kCap>
__global__ void __launch_bounds__(kMostThreads) cross_entropy_kernel(DeviceCrossEntropy a) {
  const std::int64_t row = blockIdx.x, label = a.labels[row];
  T* x = static_cast<T*>(a.logits) + row * a.classes;
  const Runs<T> runs(x, a.classes);
  const bool counts = label >= 0;
  const Logit<kCap> logit{a.scale, a.softcap, kCap ? 1.0f / a.softcap : 0.0f};
  if (!counts && a.predictions == nullptr) {
    if (threadIdx.x == 0) a.losses[row] = 0;
    if (a.backward) clear_row(x, runs);
    return;
  }
  // Read by all threads before merge_block() waits for them, and so before the row is written.
  const float chosen = counts && label < a.classes ? logit(widened(x[label])) : NAN;
  const auto found = merge_block(read_row<T, kCap>(x, runs, logit));
  const float lse = found.top() + logf(found.sum), smoothing = a.dft ? 0.0f : a.smoothing;
  const float p = a.dft ? expf(chosen - lse) : 1.0f;
  if (threadIdx.x == 0) {
    float loss = (lse - chosen) * p;
    if (smoothing > 0) loss += smoothing * (chosen - found.total / static_cast<float>(a.classes));
    a.losses[row] = counts ? loss : 0.0f;
    if (a.predictions != nullptr) a.predictions[row] = found.index;
  }
  if (!a.backward) return;
  if (!counts) return clear_row(x, runs);
  const Gradient<kCap> gradient{logit,
                                -lse * kLog2E,
                                smoothing > 0 ? -smoothing / static_cast<float>(a.classes) : 0.0f,
                                smoothing - 1.0f,
                                a.factor * a.scale * p,
                                label};
  write_row(x, runs, gradient);
}

template <class T, bool kCap>
int launch(const DeviceCrossEntropy& a, void* stream) {
  // Long rows one a multiprocessor, so that the second reading finds them in the second cache.
  const bool is_long = a.classes * static_cast<std::int64_t>(sizeof(T)) > (128 << 10);
  const int threads = is_long ? 1024 : a.classes > 4096 ? 512 : 256;
  cross_entropy_kernel<T, kCap><<<static_cast<unsigned>(a.rows), threads, 0, stream_of(stream)>>>(a);
  return launched();
}

}  // namespace

int cross_entropy(void* stream, const DeviceCrossEntropy* args) {
  const auto& a = *args;
  if (a.rows <= 0 || a.classes <= 0) return 0;
  if (a.rows >= std::int64_t{1} << 31) return cudaErrorInvalidValue;
  return with_dtype(
      a.dtype, [&]<class T>() { return a.softcap > 0 ? launch<T, true>(a, stream) : launch<T, false>(a, stream); });
}

}  // namespace tessera::cuda
