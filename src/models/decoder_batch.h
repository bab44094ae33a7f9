#pragma once
// From a causal model's batch to tokens without padding: rows, places and shifted labels.
#include "models/model.h"
#include "models/padding.h"

namespace tessera::models {

struct DecoderBatch {
  PackedBatch packed;       // padding, taken out where nobody can see the difference
  at::Tensor positions;     // [tokens] int64, for rotary and learned positions
  std::int64_t length = 0;  // positions are below it, those of padding too
  bool documents = false;   // the packed rows are documents, told apart by their positions
  at::Tensor labels;  // [tokens] int64, the label that each token predicts (shifted by one); undefined without labels
};

/// Padding stays in where a padded position predicts a label or is `needed` ([B, S] bool, or undefined), and where the
/// mask has holes. count_visible: positions
/// without position_ids are cumsum(mask) - 1, not the column. DataError for shapes that do not fit.
DecoderBatch make_decoder_batch(const ModelInput& in, bool count_visible, const at::Tensor& needed = {});

}  // namespace tessera::models
