#pragma once
// Float32 values in two arrays of 16 bits: `high` is what bfloat16's rounding makes of them, for others to read, `low`
// the lower half of their bits. Together 4 bytes an element, where a bfloat16 copy beside its master takes 6.
//
// Exact, but for values in the middle of two bfloat16s that round towards zero: they lose one unit in the last place
// (2^-24 of themselves), because one more bit would be needed to tell them from those that round away. What was read
// can be written again without a change. A NaN stays one; its bits do not.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::tensor {

struct SplitFloats {
  at::Tensor high, low;  // 1-D, contiguous, equally long: bfloat16, int16

  void read(std::int64_t begin, std::int64_t numel, float* values) const;
  void write(std::int64_t begin, std::int64_t numel, const float* values) const;
};

}  // namespace tessera::tensor
