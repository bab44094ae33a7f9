#pragma once
// The file of a SentencePiece model (spiece.model, tokenizer.model): a protocol buffer, read by an own small parser.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

struct SentencePieceModel {
  enum class Type { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  std::vector<Piece> pieces;  // by id
  // Trainer's part. An id of -1: the model has no such token.
  Type type = Type::kUnigram;
  std::int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  // Normalizer's part.
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

/// DataError (naming `file` and the byte) when the buffer is damaged, a piece is not UTF-8, or there are no pieces.
SentencePieceModel parse_sentencepiece(std::string_view bytes, const std::string& file);

}  // namespace tessera::text
