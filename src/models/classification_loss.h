#pragma once
#include <ATen/core/Tensor.h>

#include "families/classifier.h"
#include "nn/ops/token_loss.h"

namespace tessera::models {

/// transformers' ForSequenceClassificationLoss: sum of the rows' losses / normalizer, a scalar of the logits' dtype.
/// logits: [B, num_labels]; labels: [B] classes (int64, -100 ignored), or [B] or [B, num_labels] numbers (regression,
/// independent labels). DataError where the labels do not fit.
/// class_loss: what a row with one class costs.
at::Tensor classification_loss(const at::Tensor& logits, const at::Tensor& labels,
                               const families::ClassifierConfig& config, double normalizer,
                               const nn::TokenLoss& class_loss = {});

/// DeBERTa's, whose labels of several numbers are probabilities of the classes where the configuration says nothing of
/// the problem. The normalizer counts labels, of which a row has one for each class.
at::Tensor deberta_classification_loss(const at::Tensor& logits, const at::Tensor& labels,
                                       const families::ClassifierConfig& config, double normalizer,
                                       const nn::TokenLoss& class_loss = {});

}  // namespace tessera::models
