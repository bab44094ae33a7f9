#pragma once
// Matrix products without autograd, by what is fastest on this processor: our own loops for bfloat16 where it
// multiplies pairs (bf16_gemm.h, of up to 8 rows bf16_few_rows.h) and for up to 8 rows of float32 (row_products.h); in
// tiles of float32 for 16-bit matrices that it cannot multiply, and where no library multiplies float32 at full rate
// (tiled_gemm.h); else a library that libtorch carries (MKL runs float32 at half speed on processors that are not
// Intel's, oneDNN does not).
#include <ATen/core/Tensor.h>

#include "tessera/nn/weight.h"

namespace tessera::nn {

/// a [M, K] times b [K, N], or both with a leading batch size; same dtype; views that are transposed are read in place.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);
/// out = alpha * a b, out += alpha * a b. out: contiguous, of the same dtype, or float32 where has_wide_gemm().
void gemm_to(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha = 1.0);
void gemm_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha = 1.0);
/// A factor for a product of libtorch's: a, or a copy of its rows where they would be read beyond their ends.
at::Tensor whole_rows(const at::Tensor& a);
/// Whether products of a's dtype on its device can be written unrounded, in float32.
bool has_wide_gemm(const at::Tensor& a);
/// a b + u v, as a layer and its adapter give; u: [M, R], v: [R, N], of the adapter's dtype.
at::Tensor gemm_sum(const at::Tensor& a, const at::Tensor& b, const at::Tensor& u, const at::Tensor& v);

/// The second factor of a product: a packed matrix, or its transpose.
struct PackedFactor {
  const tensor::PackedMatrix& matrix;
  bool transposed;
};
/// The same with a packed second factor; without the addend where u is undefined. A few rows are multiplied by rows
/// that are decoded in the first cache (packed_rows.h). Panels of bfloat16 are made of the codes themselves
/// (packed_panels.h). Else parts of the matrix are unpacked, one after the other: tiles into memory
/// that stays in the cache, for products in float32 (tiled_gemm.h), or some columns; on a device the whole matrix.
at::Tensor gemm_packed(const at::Tensor& a, const PackedFactor& b, const at::Tensor& u, const at::Tensor& v);

/// x W^T + bias with autograd; x: [..., in], bias: [out] or undefined. Keeps x for backward only where the weight
/// trains.
at::Tensor affine(const at::Tensor& x, const Weight& weight, const at::Tensor& bias);

}  // namespace tessera::nn
