#pragma once
// Models that look words up: WordLevel (the whole word) and WordPiece (longest match first, Wu 2016).
#include <cstdint>
#include <memory>
#include <string>

#include "text/model.h"
#include "text/vocabulary.h"

namespace tessera::text {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";  // a word that no tokens make up
  std::string continuing_subword_prefix = "##";
  std::int64_t max_input_chars_per_word = 100;  // longer words are unknown
};

/// `where` begins messages. tokenize() throws DataError for an unknown word when the unknown token is not in the
/// vocabulary.
std::unique_ptr<const Model> make_word_level(Vocabulary vocabulary, const std::string& unk_token,
                                             const std::string& where);
std::unique_ptr<const Model> make_word_piece(Vocabulary vocabulary, WordPieceOptions options, const std::string& where);

}  // namespace tessera::text
