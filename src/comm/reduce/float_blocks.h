#pragma once
// Blocks of fp32 accumulators in the first-level cache: add low-precision inputs to them, write them out. SIMD through
// Highway, for the best instruction set that the machine has. Rounding to nearest even, by integer arithmetic where
// instruction sets differ, so that all give the same bits.
#include <cstddef>
#include <span>

namespace tessera::comm {

enum class FloatFormat { kFloat32, kBFloat16, kFloat16 };
enum class Combine { kSet, kSum, kMax, kMin };

/// acc[i] = acc[i] combined with float(source[i]).
void combine_block(float* acc, const void* source, FloatFormat format, std::size_t n, Combine combine);

struct Finish {
  float scale = 1.0F;
  bool accumulate = false;  // out += scale * acc
};
/// out[i] = scale * acc[i], rounded once.
void store_block(void* out, FloatFormat format, const float* acc, std::size_t n, Finish finish);

/// The same in one pass without accumulators in memory: out[i] = scale * (sources[0][i] + sources[1][i] + ...), added
/// in this order. `out` may be one of the sources.
void sum_block(void* out, FloatFormat out_format, std::span<const void* const> sources, FloatFormat in_format,
               std::size_t n, Finish finish);

}  // namespace tessera::comm
