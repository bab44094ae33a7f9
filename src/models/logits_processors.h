#pragma once
#include <ATen/core/Tensor.h>

#include <limits>

#include "models/generation.h"

namespace tessera::models {

/// The score of a token that must not be chosen.
inline constexpr float kRemoved = -std::numeric_limits<float>::infinity();

/// How far a search is.
struct Progress {
  const at::Tensor& ids;  // [R, L] int64, tokens so far, with the start token or the prompt
  std::int64_t prompt_length = 1;
  std::int64_t max_length = 0;
};

/// Applies the config's processors in transformers' order: repetition, n-grams, bad words, minimum length, forced
/// tokens, length decay, suppression. scores: [R, V] float32, in place.
void process_scores(at::Tensor scores, const Progress& progress, const GenerationConfig& config);

/// Applies the sampling filters in transformers' order: temperature, top-k, top-p, min-p, typical, epsilon, eta;
/// removed tokens become -inf. At least one token is left. scores: [R, V] float32, in place.
void warp_scores(at::Tensor scores, const GenerationConfig& config);

}  // namespace tessera::models
