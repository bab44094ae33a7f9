#pragma once
// Products of a few rows of float32, x, with the rows of a matrix as they lie, of float32, bfloat16 (as its bits) or
// float16: each of these is read once. The few rows are dense.
#include <cstdint>

#include "nn/kernels/float_math.h"

namespace tessera::nn::kernels {

/// `count` rows of `dim` elements, `stride` elements apart.
struct MatrixRows {
  std::int64_t count, dim, stride;
};

/// y = x rows^T; x: [few, dim], y: [few, count], rows y_stride apart.
void row_products(const float* x, std::int64_t few, const float* matrix, const MatrixRows& rows, float* y,
                  std::int64_t y_stride);
void row_products(const float* x, std::int64_t few, const std::uint16_t* matrix, const MatrixRows& rows, float* y,
                  std::int64_t y_stride);
void row_products(const float* x, std::int64_t few, const Float16* matrix, const MatrixRows& rows, float* y,
                  std::int64_t y_stride);

/// y = x rows; x: [few, count], y: [few, dim].
void weighted_rows(const float* x, std::int64_t few, const float* matrix, const MatrixRows& rows, float* y);
void weighted_rows(const float* x, std::int64_t few, const std::uint16_t* matrix, const MatrixRows& rows, float* y);

}  // namespace tessera::nn::kernels
