#pragma once
// Products of a few rows with a packed matrix, as generated tokens need them: some rows of the matrix at a time are
// decoded in the first cache and multiplied there, or the codec multiplies (tensor::FewRowsCodec). The sums of bfloat16
// are in another order than those of more rows.
#include <ATen/core/Tensor.h>

#include "tessera/tensor/codec.h"

namespace tessera::nn {

constexpr std::int64_t kMostFewRows = 8;

/// Whether packed_rows_product() takes x [N, in], up to kMostFewRows: of float32, of bfloat16 where the processor
/// multiplies its pairs, and of any bfloat16 and float16 where the codec multiplies, in float32 then.
bool has_few_packed_rows(const at::Tensor& x, const tensor::PackedMatrix& matrix);
/// x W^T [N, out], and + u v where u is defined (has_rows_to_add()).
at::Tensor packed_rows_product(const at::Tensor& x, const tensor::PackedMatrix& matrix, const at::Tensor& u = {},
                               const at::Tensor& v = {});
/// Whether packed_rows_product() of x adds u v, too, before it rounds: all are of bfloat16, u lies in rows and v in
/// columns.
bool has_rows_to_add(const at::Tensor& x, const at::Tensor& u, const at::Tensor& v);

}  // namespace tessera::nn
