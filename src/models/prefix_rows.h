#pragma once
// Keys and values of a prefix in front of those of every row.
#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/ops/sequence_rows.h"

namespace tessera::models {

struct PrefixRows {
  std::shared_ptr<const nn::SequenceRows> rows;  // of the keys: each begins with the prefix
  at::Tensor index;                              // int64: which of [prefix, own keys] stand there
  std::int64_t tokens = 0;                       // V, of the prefix

  /// Keys and values that a layer puts in front: of [2 * layers, V, H, size] those of the layer; undefined stays so.
  static at::Tensor of_layer(const at::Tensor& prefix, std::size_t layer);
  /// Which of all keys are seen: those of the prefix, and of the rows' own these; undefined (all) stays so.
  at::Tensor visible(const at::Tensor& own) const;
  /// [V, ...] of the prefix and [T, ...] of the rows, as the keys lie; in the second one's dtype.
  at::Tensor join(const at::Tensor& of_prefix, const at::Tensor& own) const;
};

/// own: the rows without the prefix, which has `tokens` tokens.
PrefixRows behind_prefix(const nn::SequenceRows& own, std::int64_t tokens);

}  // namespace tessera::models
