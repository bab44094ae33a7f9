#pragma once
// Rows of the evaluation split taken apart into what a model is asked and what it should say, for people to read.
#include <cstdint>
#include <memory>
#include <vector>

#include "data/sft_options.h"
#include "text/tokenizer.h"

namespace tessera::data {

struct SftSample {
  std::vector<std::int32_t> prompt, completion;
};

/// The first `count` rows of the second split. A conversation is asked up to its last answer, a plain text up to its
/// half. Prompts longer than max_length keep their end. ConfigError when there is no second split.
std::vector<SftSample> first_samples(const SftDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer,
                                     std::int64_t count);

}  // namespace tessera::data
