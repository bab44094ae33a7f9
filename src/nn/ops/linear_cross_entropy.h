#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "nn/ops/lookup.h"
#include "nn/ops/token_loss.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

class Linear;

struct CrossEntropyOptions {
  at::Tensor bias = {};  // [classes], which is added to the product
  double scale = 1.0;    // of the logits
  double softcap = 0;    // logits become softcap * tanh(logit / softcap), after `scale`; 0: as they are
  double normalizer = 1.0;
  TokenLoss token_loss = {};
  /// What the result will be multiplied by before backward (optim::GradScaler): gradients are made with it, so that
  /// those in float16 do not vanish on the way. Any other factor is right, too.
  double loss_scale = 1.0;
  at::Tensor* predictions = nullptr;              // receives the argmax of every row
  GradientSlot weight_gradient = {};              // receives the weight's gradient in backward instead of autograd
  std::optional<at::ScalarType> loss_dtype = {};  // default: hidden's
};

/// sum over rows of token_loss(scale * (hidden W^T + bias), label) / normalizer, without storing the logits. Gradients
/// are made at once (label_scores.h), so backward neither recomputes nor reads W. hidden: [rows, dim], weight:
/// [classes, dim], labels: [rows] int64, negative ones count for nothing. Statistics in float32. Not on the CPU
/// weight_gradient stays empty.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const Weight& weight, const at::Tensor& labels,
                                const CrossEntropyOptions& options);

/// Whether this may stand for a call of the head, and token_log_probs(): nothing intercepts the call, which is a
/// product with the weight's values. A packed one is unpacked whole but on the CPU. input: of the model.
bool may_read_head(const Linear& head, const at::Tensor& input);

}  // namespace tessera::nn
