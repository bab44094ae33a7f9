#pragma once
// Prompts of different lengths as one batch, and the text of what came back.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/generation.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

struct LeftPadded {
  at::Tensor ids, mask;  // [B, S] int64, padded on the left with -1, which generation counts nowhere
};
LeftPadded left_padded(const std::vector<std::vector<std::int32_t>>& rows);

/// What row r of the sequences says after its first `skip` tokens, up to the end token.
std::string generated_text(const at::Tensor& sequences, std::int64_t r, std::int64_t skip,
                           const models::GenerationConfig& settings, const text::Tokenizer& tokenizer,
                           bool skip_special);

}  // namespace tessera::tasks
