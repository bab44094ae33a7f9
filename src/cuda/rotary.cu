#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

template <int N>
__device__ __forceinline__ void load_angles(const float* from, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = *from;
  } else {
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      const auto x = *reinterpret_cast<const float4*>(from + k);
      to[k] = x.x, to[k + 1] = x.y, to[k + 2] = x.z, to[k + 3] = x.w;
    }
  }
}

/// Units of a head: first half / N with N pairs each, then those of N elements that are copied.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotary_kernel(DeviceRotary a, RowGrid grid) {
  std::int64_t token;
  std::uint32_t unit;
  if (!grid.place(token, unit)) return;
  const auto turning = static_cast<std::uint32_t>(a.half) / N;
  const auto of_head = static_cast<std::uint32_t>(a.size - 2 * a.half) / N + turning;
  const std::uint32_t head = unit / of_head, u = unit - head * of_head;
  const T* x = static_cast<const T*>(a.x) + token * a.token_stride + head * a.head_stride;
  T* y = static_cast<T*>(a.y) + (token * a.heads + head) * a.size;
  float p[N], q[N];
  if (u >= turning) {
    const std::int64_t i = 2 * a.half + static_cast<std::int64_t>(u - turning) * N;
    if constexpr (N == 1)
      y[i] = x[i];
    else
      *reinterpret_cast<uint4*>(y + i) = *reinterpret_cast<const uint4*>(x + i);
    return;
  }
  const std::int64_t angle = static_cast<std::int64_t>(u) * N, first = a.neighbours ? 2 * angle : angle,
                     second = a.neighbours ? first + N : angle + a.half, row = a.positions[token] * a.half + angle;
  float cos[N], sin[N];
  load<T, N>(x + first, p);
  load<T, N>(x + second, q);
  load_angles<N>(a.cos + row, cos);
  load_angles<N>(a.sin + row, sin);
#pragma unroll
  for (int k = 0; k < N; ++k) sin[k] = mul(a.direction, sin[k]);
  if (!a.neighbours) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const auto z = turned({p[k], q[k]}, cos[k], sin[k]);
      p[k] = z.a, q[k] = z.b;
    }
  } else if constexpr (N == 1) {
    const auto z = turned({p[0], q[0]}, cos[0], sin[0]);
    p[0] = z.a, q[0] = z.b;
  } else {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      const auto z = turned({p[k], p[k + 1]}, cos[k / 2], sin[k / 2]);
      const auto w = turned({q[k], q[k + 1]}, cos[(N + k) / 2], sin[(N + k) / 2]);
      p[k] = z.a, p[k + 1] = z.b, q[k] = w.a, q[k + 1] = w.b;
    }
  }
  store<T, N>(y + first, p);
  store<T, N>(y + second, q);
}

template <class T, int N>
int launch(const DeviceRotary& a, void* stream) {
  return launch_rows(rotary_kernel<T, N>, RowGrid(a.tokens, a.heads * ((a.size - a.half) / N)), a, stream);
}

}  // namespace

int rotary(void* stream, const DeviceRotary* args) {
  const auto& a = *args;
  if (a.tokens <= 0 || a.heads <= 0 || a.size <= 0) return 0;
  return with_dtype(a.dtype, [&]<class T>() {
    constexpr int kN = kWide<T>;
    bool wide = true;
    for (const auto n : {a.size, a.half, a.token_stride, a.head_stride}) wide = wide && n % kN == 0;
    for (const void* p :
         {a.x, static_cast<const void*>(a.y), static_cast<const void*>(a.cos), static_cast<const void*>(a.sin)})
      wide = wide && aligned(p);
    return wide ? launch<T, kN>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace tessera::cuda
