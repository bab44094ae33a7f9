#pragma once
#include <ATen/core/Tensor.h>

#include "nn/lookup.h"

namespace tessera::nn {

/// sum over rows of cross_entropy(scale * hidden W^T, label) / normalizer, without storing the logits: they are made in
/// pieces of rows, turned into gradients on the spot (so backward neither recomputes nor reads W), and dropped. hidden:
/// [rows, dim], weight: [classes, dim], labels: [rows] int64, negative ones count for nothing. Statistics in float32;
/// the result has hidden's dtype. predictions, when not null, receives the argmax of every row. weight_gradient, when
/// given, receives the weight's gradient in backward instead of autograd (see GradientSlot).
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                double scale, double normalizer, at::Tensor* predictions = nullptr,
                                const GradientSlot& weight_gradient = {});

}  // namespace tessera::nn
