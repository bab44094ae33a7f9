#include "comm/reduce/float_blocks.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <hwy/cache_control.h>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduce/float_blocks.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::comm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using HalfWords = hn::Rebind<std::uint16_t, Floats>;
using V = hn::Vec<Floats>;

// Before AVX2 there is no instruction for fp16, and scalar code is as good as any.
constexpr bool kVectorFloat16 =
    HWY_TARGET != HWY_SSE4 && HWY_TARGET != HWY_SSSE3 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128;

constexpr std::size_t kLong = 1 << 16;  // elements; sums of a large parameter

struct Float32 {
  using T = float;
  static constexpr bool kVector = true;
  static V load(const T* p) { return hn::LoadU(Floats(), p); }
  static void store(V v, T* p) { hn::StoreU(v, Floats(), p); }
  static float load_one(T x) { return x; }
  static T store_one(float x) { return x; }
};

struct BFloat16 {
  using T = std::uint16_t;
  static constexpr bool kVector = true;
  static V load(const T* p) {
    return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(HalfWords(), p))));
  }
  static void store(V v, T* p) {
    const Words d;
    const auto bits = hn::BitCast(d, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7FFF))));
    const auto is_number = hn::RebindMask(d, hn::Eq(v, v));
    hn::StoreU(hn::TruncateTo(HalfWords(), hn::IfThenElse(is_number, rounded, hn::Set(d, 0x7FC0))), HalfWords(), p);
  }
  static float load_one(T x) { return c10::detail::f32_from_bits(x); }
  static T store_one(float x) { return c10::detail::round_to_nearest_even(x); }
};

struct Float16 {
  using T = hwy::float16_t;
  static constexpr bool kVector = kVectorFloat16;
  static V load(const T* p) { return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<T, Floats>(), p)); }
  static void store(V v, T* p) {
    const hn::Rebind<T, Floats> d;
    hn::StoreU(hn::DemoteTo(d, v), d, p);
  }
  static float load_one(T x) { return c10::detail::fp16_ieee_to_fp32_value(x.bits); }
  static T store_one(float x) {
    T result;
    result.bits = c10::detail::fp16_ieee_from_fp32_value(x);
    return result;
  }
};

struct Set {
  static V apply(V, V x) { return x; }
  static float apply(float, float x) { return x; }
};
struct Sum {
  static V apply(V a, V x) { return hn::Add(a, x); }
  static float apply(float a, float x) { return a + x; }
};
// A NaN in x or a stays: comparisons with it are false in the right place.
struct Max {
  static V apply(V a, V x) { return hn::IfThenElse(hn::Or(hn::Gt(x, a), hn::Not(hn::Eq(x, x))), x, a); }
  static float apply(float a, float x) { return x > a || x != x ? x : a; }
};
struct Min {
  static V apply(V a, V x) { return hn::IfThenElse(hn::Or(hn::Lt(x, a), hn::Not(hn::Eq(x, x))), x, a); }
  static float apply(float a, float x) { return x < a || x != x ? x : a; }
};

template <class Format, class Combiner>
void combine(float* HWY_RESTRICT acc, const void* source, std::size_t n) {
  const auto* in = static_cast<const typename Format::T*>(source);
  std::size_t i = 0;
  if constexpr (Format::kVector) {
    const Floats d;
    const std::size_t lanes = hn::Lanes(d);
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(Combiner::apply(hn::LoadU(d, acc + i), Format::load(in + i)), d, acc + i);
    }
  }
  for (; i < n; ++i) acc[i] = Combiner::apply(acc[i], Format::load_one(in[i]));
}

template <class Format>
void combine_format(float* acc, const void* source, std::size_t n, Combine how) {
  switch (how) {
    case Combine::kSet:
      return combine<Format, Set>(acc, source, n);
    case Combine::kSum:
      return combine<Format, Sum>(acc, source, n);
    case Combine::kMax:
      return combine<Format, Max>(acc, source, n);
    case Combine::kMin:
      return combine<Format, Min>(acc, source, n);
  }
}

void combine_block_impl(float* acc, const void* source, FloatFormat format, std::size_t n, Combine how) {
  switch (format) {
    case FloatFormat::kFloat32:
      return combine_format<Float32>(acc, source, n, how);
    case FloatFormat::kBFloat16:
      return combine_format<BFloat16>(acc, source, n, how);
    case FloatFormat::kFloat16:
      return combine_format<Float16>(acc, source, n, how);
  }
}

/// *to = scale * sum, rounded once, or added to what is there.
template <class Format>
void finish_vector(V sum, V scale, bool accumulate, typename Format::T* to) {
  V v = hn::Mul(sum, scale);
  if (accumulate) v = hn::Add(Format::load(to), v);
  Format::store(v, to);
}
template <class Format>
void finish_one(float sum, const Finish& finish, typename Format::T& to) {
  float v = sum * finish.scale;
  if (finish.accumulate) v = Format::load_one(to) + v;
  to = Format::store_one(v);
}

template <class Format>
void store_format(void* out, const float* HWY_RESTRICT acc, std::size_t n, Finish finish) {
  auto* to = static_cast<typename Format::T*>(out);
  std::size_t i = 0;
  if constexpr (Format::kVector) {
    const Floats d;
    const std::size_t lanes = hn::Lanes(d);
    const V scale = hn::Set(d, finish.scale);
    for (; i + lanes <= n; i += lanes) {
      finish_vector<Format>(hn::LoadU(d, acc + i), scale, finish.accumulate, to + i);
    }
  }
  for (; i < n; ++i) finish_one<Format>(acc[i], finish, to[i]);
}

void store_block_impl(void* out, FloatFormat format, const float* acc, std::size_t n, Finish finish) {
  switch (format) {
    case FloatFormat::kFloat32:
      return store_format<Float32>(out, acc, n, finish);
    case FloatFormat::kBFloat16:
      return store_format<BFloat16>(out, acc, n, finish);
    case FloatFormat::kFloat16:
      return store_format<Float16>(out, acc, n, finish);
  }
}

template <class In, class Out>
void sum_formats(void* out, std::span<const void* const> sources, std::size_t n, Finish finish) {
  auto* to = static_cast<typename Out::T*>(out);
  const auto source = [&](std::size_t k) { return static_cast<const typename In::T*>(sources[k]); };
  const auto one = [&](std::size_t i) {
    float v = In::load_one(source(0)[i]);
    for (std::size_t k = 1; k < sources.size(); ++k) v += In::load_one(source(k)[i]);
    finish_one<Out>(v, finish, to[i]);
  };
  std::size_t i = 0;
  if constexpr (In::kVector && Out::kVector) {
    const Floats d;
    const std::size_t lanes = hn::Lanes(d);
    const V scale = hn::Set(d, finish.scale);
    // A long result is not read again soon: it goes past the caches, which would fetch what it overwrites.
    const bool past_caches = std::is_same_v<Out, Float32> && !finish.accumulate && n >= kLong;
    if (past_caches)
      for (; i < n && reinterpret_cast<std::uintptr_t>(to + i) % (lanes * sizeof(float)) != 0; ++i) one(i);
    const auto put = [&](V sum, std::size_t at) {
      if constexpr (std::is_same_v<Out, Float32>)
        if (past_caches) return hn::Stream(hn::Mul(sum, scale), d, to + at);
      finish_vector<Out>(sum, scale, finish.accumulate, to + at);
    };
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      const auto* first = source(0) + i;
      V a = In::load(first), b = In::load(first + lanes), c = In::load(first + 2 * lanes),
        e = In::load(first + 3 * lanes);
      for (std::size_t k = 1; k < sources.size(); ++k) {
        const auto* next = source(k) + i;
        a = hn::Add(a, In::load(next));
        b = hn::Add(b, In::load(next + lanes));
        c = hn::Add(c, In::load(next + 2 * lanes));
        e = hn::Add(e, In::load(next + 3 * lanes));
      }
      put(a, i);
      put(b, i + lanes);
      put(c, i + 2 * lanes);
      put(e, i + 3 * lanes);
    }
    if (past_caches) hwy::FlushStream();
  }
  for (; i < n; ++i) one(i);
}

template <class In>
void sum_from(void* out, FloatFormat out_format, std::span<const void* const> sources, std::size_t n, Finish finish) {
  switch (out_format) {
    case FloatFormat::kFloat32:
      return sum_formats<In, Float32>(out, sources, n, finish);
    case FloatFormat::kBFloat16:
      return sum_formats<In, BFloat16>(out, sources, n, finish);
    case FloatFormat::kFloat16:
      return sum_formats<In, Float16>(out, sources, n, finish);
  }
}

void sum_block_impl(void* out, FloatFormat out_format, std::span<const void* const> sources, FloatFormat in_format,
                    std::size_t n, Finish finish) {
  switch (in_format) {
    case FloatFormat::kFloat32:
      return sum_from<Float32>(out, out_format, sources, n, finish);
    case FloatFormat::kBFloat16:
      return sum_from<BFloat16>(out, out_format, sources, n, finish);
    case FloatFormat::kFloat16:
      return sum_from<Float16>(out, out_format, sources, n, finish);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::comm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::comm {
HWY_EXPORT(combine_block_impl);
HWY_EXPORT(store_block_impl);
HWY_EXPORT(sum_block_impl);

void combine_block(float* acc, const void* source, FloatFormat format, std::size_t n, Combine combine) {
  TESSERA_DISPATCH(combine_block_impl)(acc, source, format, n, combine);
}
void store_block(void* out, FloatFormat format, const float* acc, std::size_t n, Finish finish) {
  TESSERA_DISPATCH(store_block_impl)(out, format, acc, n, finish);
}
void sum_block(void* out, FloatFormat out_format, std::span<const void* const> sources, FloatFormat in_format,
               std::size_t n, Finish finish) {
  TESSERA_DISPATCH(sum_block_impl)(out, out_format, sources, in_format, n, finish);
}
}  // namespace tessera::comm
#endif
