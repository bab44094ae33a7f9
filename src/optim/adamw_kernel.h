#pragma once
// One pass of AdamW over a range of elements.
#include <cstdint>

namespace tessera::optim {

/// The scalars of one step, derived once from the options and the step counter.
struct AdamWStep {
  double beta1 = 0, beta2 = 0, eps = 0;
  double decay = 1;                 // 1 - lr * weight_decay
  double step_size = 0;             // lr / (1 - beta1^t)
  double inv_sqrt_correction2 = 0;  // 1 / sqrt(1 - beta2^t)
};

/// Vectorised for the processor it runs on; the result of an element doesn't depend on where the range begins.
void adamw_range(const AdamWStep& step, std::int64_t n, float* p, const float* g, float* m, float* v);
void adamw_range(const AdamWStep& step, std::int64_t n, double* p, const double* g, double* m, double* v);

/// Through fp32, a block at a time, for 16-bit parameters.
template <class T>
void adamw_range(const AdamWStep& step, std::int64_t n, T* p, const T* g, T* m, T* v) {
  constexpr std::int64_t kBlock = 256;
  float fp[kBlock], fg[kBlock], fm[kBlock], fv[kBlock];
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const auto count = n - at < kBlock ? n - at : kBlock;
    for (std::int64_t i = 0; i < count; ++i) {
      fp[i] = static_cast<float>(p[at + i]);
      fg[i] = static_cast<float>(g[at + i]);
      fm[i] = static_cast<float>(m[at + i]);
      fv[i] = static_cast<float>(v[at + i]);
    }
    adamw_range(step, count, fp, fg, fm, fv);
    for (std::int64_t i = 0; i < count; ++i) {
      p[at + i] = static_cast<T>(fp[i]);
      m[at + i] = static_cast<T>(fm[i]);
      v[at + i] = static_cast<T>(fv[i]);
    }
  }
}

}  // namespace tessera::optim
