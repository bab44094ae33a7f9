#pragma once
// Products of a few rows of bfloat16 with the rows of a weight, as generated tokens need them: x W^T. The weight is
// read once, as it stands: pairs of 16 of its rows are turned in registers and multiplied by VDPBF16PS, faster than
// memory gives them. The sums are added in the order of bf16_gemm.h, so the results have the same bits.
#include "nn/kernels/bf16_gemm.h"
#include "nn/kernels/row_products.h"

namespace tessera::nn::kernels {

/// Whether few_rows_gemm() takes this product: at most 8 rows, second factors that are transposes of rows, at least 16
/// columns. Not where AMX's tiles multiply.
bool has_few_rows(const Bf16Gemm& product);

/// On one thread. out: not turned.
void few_rows_gemm(const Bf16Gemm& product, const Bf16GemmOutput& out);

/// y = x w^T, or y += x w^T, with `rows` of w that lie in a cache. x: [few, rows.dim], at most 8 rows, x_stride
/// elements apart; y: [few, rows.count], rows y_stride apart. Only where has_bf16_dot().
void cached_row_products(const std::uint16_t* x, std::int64_t x_stride, std::int64_t few, const std::uint16_t* w,
                         const MatrixRows& rows, float* y, std::int64_t y_stride, bool add);

}  // namespace tessera::nn::kernels
