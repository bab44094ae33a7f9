#pragma once
// Log-probabilities of labels by a language model's head, and their gradients, for many rows at a time and without
// their logits, which may be a hundred times larger.
//
// The head's weight is passed over in chunks of classes. A row keeps its largest logit and sums relative to it (Milakov
// and Gimelshein 2018, "Online normalizer calculation for softmax"). Where the head is frozen, one pass is enough: the
// sum over classes of probability times weight, which is the gradient of the row, is made like the output of
// FlashAttention. Where it trains, a second pass makes the gradients of logits that the first one left in the memory
// where the weight's gradient will be. Rows that don't fit there keep them in memory of its own, some rows at a time.
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "nn/ops/head_gradient.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

/// A row x has the logits softcap(scale * (x W^T + bias)).
struct LogitHead {
  Weight weight;         // [classes, dim]; a packed one is unpacked chunk by chunk
  at::Tensor bias = {};  // [classes] or undefined
  float scale = 1.0f;
  float softcap = 0;  // 0: none
};

/// What receives gradients of the sum over rows of factor * score; undefined or null: not wanted.
struct ScoreGradients {
  at::Tensor hidden = {};          // [rows, dim], of hidden's dtype
  at::Tensor bias = {};            // [classes] float32, zeros
  HeadGradient* weight = nullptr;  // new
  bool any() const { return hidden.defined() || bias.defined() || weight; }
};

struct LabelScoreOptions {
  bool predictions = false, statistics = false;
  double label_smoothing = 0;
  ScoreGradients gradients = {};
  std::function<float(std::int64_t row, float score)> factor = {};
};

struct LabelScores {
  /// [rows] float32: the label's log-probability, 0 where the label is negative. With label smoothing s it counts 1 -
  /// s, and the mean of all classes' s.
  at::Tensor scores;
  std::vector<std::int64_t> predictions;  // [rows]: the class with the largest logit, the first of several
  at::Tensor statistics;                  // [rows, kTokenStatistics] float32 (token_log_probs.h)
};

/// hidden: [rows, dim], contiguous, on the CPU; labels: [rows] int64, contiguous. DataError names a label that the head
/// has no class for.
LabelScores label_scores(const at::Tensor& hidden, LogitHead head, const at::Tensor& labels,
                         const LabelScoreOptions& options);

}  // namespace tessera::nn
