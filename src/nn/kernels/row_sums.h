#pragma once
// Numbers that need a whole row of float32: its largest element, its products' sum, its exponentials. Sums are kept a
// vector's lane each and added at the end.
#include <cstdint>

namespace tessera::nn::kernels {

/// Of n elements; the lowest finite number if there are none.
float largest(const float* x, std::int64_t n);
float sum(const float* x, std::int64_t n);
/// The sum of x[i] * y[i].
float dot(const float* x, const float* y, std::int64_t n);
/// y[i] = exp(factor * x[i] - shift), 0 where that is below exp(-87); returns their sum. The exponent is at most 88. In
/// place allowed.
float exponentials(const float* x, float* y, float factor, float shift, std::int64_t n);
/// The same, but returns the sum of y[i] * g[i].
float exponentials_dot(const float* x, float* y, float factor, float shift, const float* g, std::int64_t n);
/// The sum of the exponentials alone.
float sum_of_exponentials(const float* x, float factor, float shift, std::int64_t n);

}  // namespace tessera::nn::kernels
