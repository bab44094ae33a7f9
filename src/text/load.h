#pragma once
// Files -> Pipeline.
#include <optional>
#include <string>

#include "text/pipeline.h"

namespace tessera::text {

/// What tokenizer_config.json and special_tokens_map.json of a folder say. Missing files say nothing.
struct TokenizerConfig {
  SpecialTokens special;
  std::optional<int> extra_ids;  // T5: how many <extra_id_N>
};
TokenizerConfig read_tokenizer_config(const std::string& folder);

/// spiece.model alone: the form that Hugging Face publishes for it. T5's layout (pad 0, eos 1, unk 2) gets 100
/// <extra_id_N> behind the pieces, N falling, unless the configuration says another number.
Pipeline load_sentencepiece(const std::string& file, const TokenizerConfig& config);

/// tokenizer.json, version 1.0.
Pipeline load_tokenizer_json(const std::string& file, const TokenizerConfig& config);

}  // namespace tessera::text
