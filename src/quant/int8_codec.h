#pragma once
// LLM.int8() (Dettmers et al., 2022) as bitsandbytes computes it on a CPU: a row of a matrix is scaled by its largest
// magnitude and rounded to int8. Inference rounds the rows of its input, too, but for the columns that hold outliers.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "tessera/tensor/codec.h"

namespace tessera::quant {

/// Codes int8 [rows, columns]; SCB float32 [rows], max |w| of each row. Values are rounded to float16 first. threshold:
/// from which magnitude on an input of inference is an outlier; 0: none is.
std::shared_ptr<const tensor::Codec> int8_codec(std::int64_t columns, double threshold = 6.0);

/// max |x| of each row of `columns` values, as float16 has them: `rows` scales.
void int8_scales(const float* x, std::int64_t rows, std::int64_t columns, float* scales);
/// round(127 x / scale) of each value, as float16 has it, half to even; a row of zeros has the codes 0.
void encode_int8(const float* x, std::int64_t rows, std::int64_t columns, const float* scales, std::int8_t* codes);

/// The rows of an input x [N, columns]: codes int8 [N, columns], scales float32 [N], and the columns with outliers
/// (int64, ascending; undefined without a threshold), whose codes are 0.
struct Int8Rows {
  at::Tensor codes, scales, outliers;
};
Int8Rows int8_rows(const at::Tensor& x, double threshold);

}  // namespace tessera::quant
