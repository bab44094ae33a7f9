#pragma once
#include <functional>

#include "models/generation.h"

namespace tessera::models {

/// Gives the raw logits [R, V] float32 after tokens [R, T] were appended to the rows `parents` [R] of the step before
/// (undefined: the rows as they are). R = batch * beams.
using NextLogits = std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& parents)>;

/// prompts: [batch, P] int64, what every beam starts with.
GenerationOutput beam_search(const at::Tensor& prompts, std::int64_t max_length, const GenerationConfig& config,
                             const NextLogits& next, const AnyGoesOn& any_goes_on);

}  // namespace tessera::models
