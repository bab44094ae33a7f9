#pragma once
// The fused operations of this room from libtorch's own differentiable operators, for tensors that are not on the CPU.
// Each public function of the room decides once, by its first tensor; arguments, results, dtypes and draws of random
// numbers are those of that function, whose header describes them. They keep what autograd keeps: probabilities and
// scores are stored, but for attention that is causal and nothing else; logits are not. Masks have the CPU's bits;
// those of probabilities are made on the host. Gradients reach parameters through autograd alone: gradient slots stay
// empty. What a device has kernels for (tensor/device_kernels.h) does not come here.
#include <ATen/core/Tensor.h>

#include "nn/ops/attention.h"
#include "nn/ops/dropout_mask.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/rotary.h"

namespace tessera::nn::composite {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset);
/// direction: 1, or -1, which turns back. Without autograd.
at::Tensor rotated(const at::Tensor& x, const RotaryTable& table, double direction);
/// base + mask(x); base: of x's dtype, or undefined. Without autograd.
at::Tensor masked(const at::Tensor& x, const DropoutMask& mask, const at::Tensor& base);
/// ids: on any device, checked.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids, std::int64_t padding_idx);
/// piece: logits that exist at a time, in float32.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const CrossEntropyOptions& options, std::int64_t piece = 1 << 27);
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options,
                     const ScoreTerms& terms);

}  // namespace tessera::nn::composite
