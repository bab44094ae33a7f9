#pragma once
#include <ATen/core/Tensor.h>

#include "models/generation.h"

namespace tessera::models {

/// Applies the config's processors in transformers' order (repetition penalty, n-grams, minimum length). scores: [R, V]
/// float32, in place; ids: [R, L] tokens so far, with the start token.
void process_scores(at::Tensor scores, const at::Tensor& ids, const GenerationConfig& config);

}  // namespace tessera::models
