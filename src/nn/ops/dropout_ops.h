#pragma once
// Dropout fused with what usually stands beside it. p = 0 draws nothing from the stream.
#include <ATen/core/Tensor.h>

#include "nn/ops/dropout_mask.h"

namespace tessera::nn {

at::Tensor dropout(const at::Tensor& x, double p);
/// residual + dropout(x); same shape and dtype.
at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, double p);
/// dropout(relu(x)); keeps only its result for backward.
at::Tensor relu_dropout(const at::Tensor& x, double p);

/// How many rows (all but the last dimension) a mask for x has.
std::int64_t mask_rows(const at::Tensor& x);
/// y = mask(x) or y += mask(x) over whole contiguous tensors, without autograd.
void apply_mask(const at::Tensor& x, const at::Tensor& y, const DropoutMask& mask);
void accumulate_masked(const at::Tensor& x, const at::Tensor& y, const DropoutMask& mask);
/// mask(x), or x itself where nothing is dropped; without autograd.
at::Tensor masked(const at::Tensor& x, const DropoutMask& mask);

}  // namespace tessera::nn
