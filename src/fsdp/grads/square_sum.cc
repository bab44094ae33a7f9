#include "fsdp/grads/square_sum.h"

#include <cstring>

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/grads/square_sum.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::fsdp {
namespace HWY_NAMESPACE {

/// By whole vectors: the product of two float32 is exact in double, so that fused additions change nothing.
double sum_of_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
  using Doubles = double __attribute__((vector_size(kLanes * sizeof(double))));
  Doubles lanes{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats floats;
    std::memcpy(&floats, x + i, sizeof floats);
    const auto v = __builtin_convertvector(floats, Doubles);
    lanes += v * v;
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += double{x[i]} * x[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::fsdp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::fsdp {

HWY_EXPORT(sum_of_squares);

double sum_of_squares(const float* x, std::int64_t n) {
  return TESSERA_DISPATCH(sum_of_squares)(x, n);
}

}  // namespace tessera::fsdp
#endif
