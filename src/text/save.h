#pragma once
// Changes to a tokenizer, and its files.
#include <string>

#include "text/pipeline.h"

namespace tessera::text {

/// Special tokens that are not empty replace the old ones; tokens that are new get the next free id, as transformers'
/// add_special_tokens() does.
void apply_special_tokens(const SpecialTokens& changes, Pipeline& pipeline);

/// See TokenizerChanges::added_tokens_of.
void add_tokens_of(const Tokenizer& other, Pipeline& pipeline);

/// See Tokenizer::definition(), of a pipeline that has a source; and Tokenizer::save().
std::string tokenizer_json(const Pipeline& pipeline);
void save_pipeline(const Pipeline& pipeline, const std::string& folder);

}  // namespace tessera::text
