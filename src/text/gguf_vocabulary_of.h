#pragma once
// A tokenizer as the keys `tokenizer.ggml.*`: the other way round of text/gguf_tokenizer.h.
#include <nlohmann/json_fwd.hpp>

#include "text/gguf_tokenizer.h"
#include "text/tokenizer.h"

namespace tessera::text {

/// root: its tokenizer.json. vocab_size: of the model; ids beyond the tokenizer's are unused tokens. Byte-level BPE
/// whose way of cutting words has a name in the format, WordPiece, and SentencePiece's BPE and unigrams; DataError for
/// others.
GgufVocabulary gguf_vocabulary_of(const Tokenizer& tokenizer, const nlohmann::json& root, std::int64_t vocab_size);

/// Between two texts stand two tokens, as RoBERTa's.
bool separates_twice(const nlohmann::json& root);

}  // namespace tessera::text
