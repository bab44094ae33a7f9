#pragma once
// Files -> Pipeline. Every other form is turned into a tokenizer.json first, so there is one reader and one way to
// save.
#include <string>

#include "text/pipeline.h"
#include "text/tokenizer_config.h"

namespace tessera::text {

/// Adds tokenizer.json's added tokens to the configuration's.
void take_added_tokens(const std::string& file, TokenizerConfig& config);

/// tokenizer.json, version 1.0, with what the configuration changes, as transformers' fast tokenizers do.
Pipeline load_tokenizer_json(const std::string& file, const TokenizerConfig& config);
/// The same from memory; `source` and the configuration's folder are kept for saving.
Pipeline parse_tokenizer_json(std::string_view json, std::shared_ptr<const TokenizerSource> source,
                              const std::string& name, const TokenizerConfig& config);

}  // namespace tessera::text
