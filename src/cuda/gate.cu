#include "cuda/elements.cuh"
#include "cuda/formulas.h"
#include "cuda/kernels.h"

namespace tessera::cuda {
namespace {

/// f<Kind>() with the activation's type; the same way for all threads.
template <class F>
__device__ __forceinline__ void with_activation(DeviceActivation activation, const F& f) {
  switch (activation) {
    case kDeviceSilu:
      return f.template operator()<Silu>();
    case kDeviceGelu:
      return f.template operator()<Gelu>();
    case kDeviceGeluTanh:
      return f.template operator()<GeluTanh>();
    case kDeviceQuickGelu:
      return f.template operator()<QuickGelu>();
    case kDeviceReluSquared:
      return f.template operator()<ReluSquared>();
  }
}

template <class T, int N>
__device__ __forceinline__ void load_up(const DeviceGate& a, std::int64_t at, float (&up)[N]) {
  if (a.up != nullptr) return load<T, N>(static_cast<const T*>(a.up) + at, up);
#pragma unroll
  for (int k = 0; k < N; ++k) up[k] = 1.0f;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) gate_kernel(DeviceGate a, RowGrid grid) {
  std::int64_t row;
  std::uint32_t unit;
  if (!grid.place(row, unit)) return;
  const std::int64_t first = static_cast<std::int64_t>(unit) * N;
  float x[N], up[N];
  load<T, N>(static_cast<const T*>(a.x) + row * a.x_stride + first, x);
  load_up<T, N>(a, row * a.up_stride + first, up);
  with_activation(a.activation, [&]<class Kind>() {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = mul(Kind(x[k]).value(), up[k]);
  });
  store<T, N>(static_cast<T*>(a.value) + row * a.n + first, x);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) gate_gradient_kernel(DeviceGate a, RowGrid grid) {
  std::int64_t row;
  std::uint32_t unit;
  if (!grid.place(row, unit)) return;
  const std::int64_t first = static_cast<std::int64_t>(unit) * N, at = row * a.n + first;
  float x[N], up[N], g[N];
  load<T, N>(static_cast<const T*>(a.x) + row * a.x_stride + first, x);
  load<T, N>(static_cast<const T*>(a.gradient) + at, g);
  load_up<T, N>(a, row * a.up_stride + first, up);
  with_activation(a.activation, [&]<class Kind>() {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Kind here(x[k]);
      const float v = here.value(), gu = mul(g[k], v);
      x[k] = mul(mul(g[k], up[k]), here.slope());
      up[k] = mul(v, up[k]);
      g[k] = gu;
    }
  });
  store<T, N>(static_cast<T*>(a.x_gradient) + at, x);
  if (a.up != nullptr) store<T, N>(static_cast<T*>(a.up_gradient) + at, g);
  if (a.value != nullptr) store<T, N>(static_cast<T*>(a.value) + at, up);
}

template <class T, int N>
int launch(const DeviceGate& a, void* stream) {
  const RowGrid grid(a.rows, a.n / N);
  return a.gradient == nullptr ? launch_rows(gate_kernel<T, N>, grid, a, stream)
                               : launch_rows(gate_gradient_kernel<T, N>, grid, a, stream);
}

}  // namespace

int gate(void* stream, const DeviceGate* args) {
  const auto& a = *args;
  if (a.rows <= 0 || a.n <= 0) return 0;
  if (a.activation < kDeviceSilu || a.activation > kDeviceReluSquared) return cudaErrorInvalidValue;
  return with_dtype(a.dtype, [&]<class T>() {
    constexpr int kN = kWide<T>;
    bool wide = a.n % kN == 0 && a.x_stride % kN == 0 && (a.up == nullptr || a.up_stride % kN == 0);
    for (const void* p : {a.x, a.up, a.gradient, static_cast<const void*>(a.value),
                          static_cast<const void*>(a.x_gradient), static_cast<const void*>(a.up_gradient)})
      wide = wide && aligned(p);
    return wide ? launch<T, kN>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace tessera::cuda
