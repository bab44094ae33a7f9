#include "fsdp/grads/square_sum.h"

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/grads/square_sum.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::fsdp {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// In eight lanes whatever a vector's width. The product of two float32 is exact in double: a fused addition changes
/// nothing.
double sum_of_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  const hn::CappedTag<double, kLanes> doubles;
  const hn::Rebind<float, decltype(doubles)> floats;
  constexpr std::int64_t kWidth = hn::MaxLanes(doubles), kVectors = kLanes / kWidth;
  hn::Vec<decltype(doubles)> sums[kVectors];
#pragma GCC unroll 8
  for (int k = 0; k < kVectors; ++k) sums[k] = hn::Zero(doubles);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) {
      const auto v = hn::PromoteTo(doubles, hn::LoadU(floats, x + i + k * kWidth));
      sums[k] = hn::MulAdd(v, v, sums[k]);
    }
  }
  double lanes[kLanes];
#pragma GCC unroll 8
  for (int k = 0; k < kVectors; ++k) hn::StoreU(sums[k], doubles, lanes + k * kWidth);
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
