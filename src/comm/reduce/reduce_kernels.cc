#include "comm/reduce/reduce_kernels.h"

#include <algorithm>
#include <type_traits>

#include "comm/reduce/float_blocks.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::int64_t kBlock = 1024;  // 4 KiB of fp32: stays in the first-level cache with its inputs

bool is_small_float(c10::ScalarType t) {
  return t == c10::ScalarType::Float || t == c10::ScalarType::BFloat16 || t == c10::ScalarType::Half;
}

bool is_integer(c10::ScalarType t) {
  switch (t) {
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
      return true;
    default:
      return false;
  }
}

FloatFormat format_of(c10::ScalarType t) {
  if (t == c10::ScalarType::BFloat16) return FloatFormat::kBFloat16;
  return t == c10::ScalarType::Half ? FloatFormat::kFloat16 : FloatFormat::kFloat32;
}

Combine combine_of(ReduceOp op) {
  if (op == ReduceOp::kMax) return Combine::kMax;
  return op == ReduceOp::kMin ? Combine::kMin : Combine::kSum;
}

template <class T>
T combine_one(T a, T x, ReduceOp op) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // sums wrap
    if (op == ReduceOp::kSum) return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(x)));
  }
  if (op == ReduceOp::kMax) return x > a || x != x ? x : a;
  if (op == ReduceOp::kMin) return x < a || x != x ? x : a;
  return static_cast<T>(a + x);
}

template <class T>
void combine_all(T* acc, std::span<const void* const> inputs, std::int64_t from, std::int64_t n,
                 const Reduction& reduction) {
  const ReduceOp op = reduction.op;
  const bool continues = reduction.before != nullptr;
  std::copy_n(static_cast<const T*>(continues ? reduction.before : inputs[0]) + from, n, acc);
  for (const void* input : inputs.subspan(continues ? 0 : 1)) {
    const T* x = static_cast<const T*>(input) + from;
    for (std::int64_t i = 0; i < n; ++i) acc[i] = combine_one(acc[i], x[i], op);
  }
}

template <class T>
void reduce_integers(void* out, std::span<const void* const> inputs, std::int64_t n, const Reduction& reduction) {
  T acc[kBlock];
  for (std::int64_t from = 0; from < n; from += kBlock) {
    const std::int64_t count = std::min(kBlock, n - from);
    combine_all(acc, inputs, from, count, reduction);
    std::copy_n(acc, count, static_cast<T*>(out) + from);
  }
}

void store_doubles(void* out, c10::ScalarType type, std::int64_t from, const double* acc, std::int64_t n,
                   const Reduction& reduction) {
  if (type == c10::ScalarType::Double) {
    double* to = static_cast<double*>(out) + from;
    for (std::int64_t i = 0; i < n; ++i) to[i] = acc[i] * reduction.scale + (reduction.accumulate ? to[i] : 0.0);
    return;
  }
  float narrow[kBlock];
  for (std::int64_t i = 0; i < n; ++i) narrow[i] = static_cast<float>(acc[i] * reduction.scale);
  store_block(static_cast<std::byte*>(out) + from * static_cast<std::int64_t>(c10::elementSize(type)), format_of(type),
              narrow, static_cast<std::size_t>(n), {1.0F, reduction.accumulate});
}

void reduce_doubles(void* out, c10::ScalarType out_type, std::span<const void* const> inputs, std::int64_t n,
                    const Reduction& reduction) {
  double acc[kBlock];
  for (std::int64_t from = 0; from < n; from += kBlock) {
    const std::int64_t count = std::min(kBlock, n - from);
    combine_all(acc, inputs, from, count, reduction);
    store_doubles(out, out_type, from, acc, count, reduction);
  }
}

void reduce_small_floats(void* out, c10::ScalarType out_type, std::span<const void* const> inputs,
                         c10::ScalarType in_type, std::int64_t n, const Reduction& reduction) {
  const auto in_size = static_cast<std::int64_t>(c10::elementSize(in_type));
  const auto out_size = static_cast<std::int64_t>(c10::elementSize(out_type));
  if (reduction.op == ReduceOp::kSum && reduction.before == nullptr && is_small_float(out_type)) {
    return sum_block(out, format_of(out_type), inputs, format_of(in_type), static_cast<std::size_t>(n),
                     {static_cast<float>(reduction.scale), reduction.accumulate});
  }
  alignas(64) float acc[kBlock];
  for (std::int64_t from = 0; from < n; from += kBlock) {
    const std::int64_t count = std::min(kBlock, n - from);
    Combine combine = Combine::kSet;
    if (reduction.before != nullptr) {
      std::copy_n(static_cast<const float*>(reduction.before) + from, count, acc);
      combine = combine_of(reduction.op);
    }
    for (const void* input : inputs) {
      combine_block(acc, static_cast<const std::byte*>(input) + from * in_size, format_of(in_type),
                    static_cast<std::size_t>(count), combine);
      combine = combine_of(reduction.op);
    }
    if (out_type == c10::ScalarType::Double) {
      double wide[kBlock];
      std::copy_n(acc, count, wide);
      store_doubles(out, out_type, from, wide, count, reduction);
    } else {
      store_block(static_cast<std::byte*>(out) + from * out_size, format_of(out_type), acc,
                  static_cast<std::size_t>(count), {static_cast<float>(reduction.scale), reduction.accumulate});
    }
  }
}

}  // namespace

bool can_reduce(c10::ScalarType in, c10::ScalarType out) {
  const auto is_float = [](c10::ScalarType t) { return is_small_float(t) || t == c10::ScalarType::Double; };
  return (is_float(in) && is_float(out)) || (is_integer(in) && in == out);
}

c10::ScalarType accumulation_type(c10::ScalarType t) {
  return is_small_float(t) ? c10::ScalarType::Float : t;
}

void reduce_into(void* out, c10::ScalarType out_type, std::span<const void* const> inputs, c10::ScalarType in_type,
                 std::int64_t n, const Reduction& reduction) {
  if (n == 0) return;
  if (is_small_float(in_type)) return reduce_small_floats(out, out_type, inputs, in_type, n, reduction);
  switch (in_type) {
    case c10::ScalarType::Double:
      return reduce_doubles(out, out_type, inputs, n, reduction);
    case c10::ScalarType::Byte:
      return reduce_integers<std::uint8_t>(out, inputs, n, reduction);
    case c10::ScalarType::Char:
      return reduce_integers<std::int8_t>(out, inputs, n, reduction);
    case c10::ScalarType::Short:
      return reduce_integers<std::int16_t>(out, inputs, n, reduction);
    case c10::ScalarType::Int:
      return reduce_integers<std::int32_t>(out, inputs, n, reduction);
    case c10::ScalarType::Long:
      return reduce_integers<std::int64_t>(out, inputs, n, reduction);
    default:
      TESSERA_CHECK(false, "a dtype that can_reduce() refuses");
  }
}

}  // namespace tessera::comm
