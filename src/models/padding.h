#pragma once
// Takes padding out of a batch: the encoder works on the visible tokens only.
#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/ops/sequence_rows.h"

namespace tessera::models {

struct PackedBatch {
  std::shared_ptr<const nn::SequenceRows> rows;
  at::Tensor index;    // [tokens] int64: places in the flattened [B * S] batch; undefined: all of them, in order
  at::Tensor visible;  // [B * S] uint8 when padding could not be taken out (holes inside a row, or an invisible row);
                       // else undefined
  std::int64_t batch = 0, length = 0;

  /// [B, S, ...] -> [tokens, ...]
  at::Tensor pack(const at::Tensor& x) const;
  /// The same of what the host knows, as ids: packed there, and copied to the device of `like`.
  at::Tensor pack_beside(const at::Tensor& x, const at::Tensor& like) const;
  /// [tokens, D] -> [B, S, D], zeros at padding. Differentiable.
  at::Tensor unpack(const at::Tensor& x) const;
};

/// What the tokens of a [B, S] batch are in the job (ModelInput::row_ids): a number for each row and place in it,
/// padding before the first token not counted. [B, S] int64 on the CPU; undefined for undefined row_ids.
at::Tensor token_keys(const at::Tensor& row_ids, const at::Tensor& mask, std::int64_t batch, std::int64_t length);

/// The keys of draws (tensor/rng.h) for these of the tokens, int64 places; undefined where there are none.
at::Tensor keys_at(const at::Tensor& places);

/// mask: [B, S] int64 0/1 or undefined. Distances between tokens stay those of the padded rows.
PackedBatch pack_batch(const at::Tensor& mask, std::int64_t batch, std::int64_t length);

}  // namespace tessera::models
