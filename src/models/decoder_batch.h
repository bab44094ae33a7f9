#pragma once
// From a causal model's batch to tokens without padding: rows, places and shifted labels.
#include "models/model.h"
#include "models/padding.h"

namespace tessera::models {

struct DecoderBatch {
  PackedBatch packed;       // padding, taken out where nobody can see the difference
  at::Tensor ids;           // [tokens] int64
  at::Tensor positions;     // [tokens] int64, for rotary and learned positions, behind ModelInput::prefix
  std::int64_t length = 0;  // positions are below it, those of padding too
  bool documents = false;   // the packed rows are documents, told apart by their positions
  /// [tokens] int64 on the CPU, the label that each token predicts (shifted by one); undefined without labels.
  at::Tensor labels;
};

/// Made on the host, and copied to the batch's device. Padding stays in where a padded position predicts a label or is
/// `needed` ([B, S] bool on the CPU, or undefined), and where the mask has holes. count_visible: positions without
/// position_ids are cumsum(mask) - 1, not the column. DataError for shapes that do not fit.
DecoderBatch make_decoder_batch(const ModelInput& in, bool count_visible, const at::Tensor& needed = {});

}  // namespace tessera::models
