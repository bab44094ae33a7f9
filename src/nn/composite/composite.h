#pragma once
// The fused operations of this room from libtorch's own differentiable operators, for tensors that are not on the CPU.
// Each public function of the room decides once, by its first tensor; arguments, results, dtypes and draws of random
// numbers are those of that function, whose header describes them. They keep what autograd keeps: probabilities and
// scores are stored, but for attention that is causal and nothing else; logits are not. Masks have the CPU's bits;
// those of probabilities are made on the host. Gradients reach parameters through autograd alone: gradient slots stay
// empty.
#include <ATen/core/Tensor.h>

#include <utility>

#include "nn/ops/attention.h"
#include "nn/ops/causal_attention.h"
#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/lora_linear.h"
#include "nn/ops/rotary.h"

namespace tessera::nn::composite {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset);
std::pair<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table);
at::Tensor dropout(const at::Tensor& x, double p);
/// ids: on any device, checked.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids, std::int64_t padding_idx);
/// piece: logits that exist at a time, in float32.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const CrossEntropyOptions& options, std::int64_t piece = 1 << 27);
at::Tensor lora_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LowRank& adapter);
/// norms: [out] float32, of the adapted weight's rows.
at::Tensor dora_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const LowRank& adapter,
                       const at::Tensor& magnitude, const at::Tensor& norms);
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                     const AttentionOptions& options);
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const CausalAttentionOptions& options);

}  // namespace tessera::nn::composite
