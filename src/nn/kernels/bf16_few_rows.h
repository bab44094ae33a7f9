#pragma once
// Products of a few rows of bfloat16 with the rows of a weight, as generated tokens need them: x W^T. The weight is
// read once, as it stands: pairs of 16 of its rows are turned in registers and multiplied by VDPBF16PS, faster than
// memory gives them. The sums are added in the order of bf16_gemm.h, so the results have the same bits.
#include "nn/kernels/bf16_gemm.h"

namespace tessera::nn::kernels {

/// Whether few_rows_gemm() takes this product: at most 8 rows, second factors that are transposes of rows or have
/// columns to copy, at least 16 columns. Not where AMX's tiles multiply.
bool has_few_rows(const Bf16Gemm& product);

/// Elements of bfloat16 that few_rows_gemm() writes on its way: 16 columns of a factor that is no matrix in memory.
std::int64_t few_rows_scratch_numel(const Bf16Gemm& product);

/// On one thread. out: not turned.
void few_rows_gemm(const Bf16Gemm& product, const Bf16GemmOutput& out, std::uint16_t* scratch);

}  // namespace tessera::nn::kernels
