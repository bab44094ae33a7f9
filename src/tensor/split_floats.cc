#include "tensor/split_floats.h"

#include <algorithm>

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/split_floats.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<std::uint32_t>;
using Halves = hn::Rebind<std::uint16_t, Words>;

/// Elements from what is joined to what is fetched: callers take a block of this many at a time, with work of other
/// memory in between, for which the processor alone fetches too late.
constexpr std::int64_t kAhead = 512;

HWY_INLINE void join_vector(const std::uint16_t* high, const std::uint16_t* low, float* values) {
  const Words words;
  const auto rounded = hn::PromoteTo(words, hn::LoadU(Halves(), high));
  const auto rest = hn::PromoteTo(words, hn::LoadU(Halves(), low));
  const auto upper = hn::Sub(rounded, hn::ShiftRight<15>(rest));  // it was rounded up
  hn::StoreU(hn::Or(hn::ShiftLeft<16>(upper), rest), words, reinterpret_cast<std::uint32_t*>(values));
}

HWY_INLINE void split_vector(const float* values, std::uint16_t* high, std::uint16_t* low) {
  const Words words;
  const auto set = [&](std::uint32_t x) { return hn::Set(words, x); };
  auto bits = hn::LoadU(words, reinterpret_cast<const std::uint32_t*>(values));
  const auto nan = hn::Gt(hn::And(bits, set(0x7fffffff)), set(0x7f800000));
  bits = hn::IfThenElse(nan, set(0x7fc00000), bits);
  const auto middle = hn::Eq(hn::And(bits, set(0x1ffff)), set(0x8000));  // and rounds to the even number below
  bits = hn::Sub(bits, hn::IfThenElseZero(middle, set(1)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, set(0x8000)));
  hn::StoreU(hn::TruncateTo(Halves(), rounded), Halves(), high);
  hn::StoreU(hn::TruncateTo(Halves(), bits), Halves(), low);
}

void join(std::int64_t n, const std::uint16_t* high, const std::uint16_t* low, float* values) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Words()));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hwy::Prefetch(high + i + kAhead);
    hwy::Prefetch(low + i + kAhead);
    join_vector(high + i, low + i, values + i);
  }
  if (i == n) return;
  constexpr auto kLanes = HWY_MAX_BYTES / sizeof(float);
  std::uint16_t h[kLanes] = {}, l[kLanes] = {};
  float v[kLanes];
  std::copy(high + i, high + n, h);
  std::copy(low + i, low + n, l);
  join_vector(h, l, v);
  std::copy(v, v + (n - i), values + i);
}

void split(std::int64_t n, const float* values, std::uint16_t* high, std::uint16_t* low) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Words()));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) split_vector(values + i, high + i, low + i);
  if (i == n) return;
  constexpr auto kLanes = HWY_MAX_BYTES / sizeof(float);
  std::uint16_t h[kLanes], l[kLanes];
  float v[kLanes] = {};
  std::copy(values + i, values + n, v);
  split_vector(v, h, l);
  std::copy(h, h + (n - i), high + i);
  std::copy(l, l + (n - i), low + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor {

HWY_EXPORT(join);
HWY_EXPORT(split);

namespace {

std::uint16_t* words_of(const at::Tensor& t, std::int64_t begin) {
  return static_cast<std::uint16_t*>(t.mutable_data_ptr()) + begin;
}

}  // namespace

void SplitFloats::read(std::int64_t begin, std::int64_t numel, float* values) const {
  TESSERA_DISPATCH(join)(numel, words_of(high, begin), words_of(low, begin), values);
}

void SplitFloats::write(std::int64_t begin, std::int64_t numel, const float* values) const {
  TESSERA_DISPATCH(split)(numel, values, words_of(high, begin), words_of(low, begin));
}

}  // namespace tessera::tensor
#endif
