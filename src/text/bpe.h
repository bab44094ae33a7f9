#pragma once
// Byte pair encoding, as the BPE model of tokenizer.json: GPT-2's over byte signs, SentencePiece's with byte fallback.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/model.h"
#include "text/vocabulary.h"

namespace tessera::text {

struct BpeOptions {
  Vocabulary vocabulary;
  /// In order of rank. The views need live only until make_bpe() returns.
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  std::string unk_token;                  // empty: unknown characters vanish
  std::string continuing_subword_prefix;  // of all tokens but a word's first
  std::string end_of_word_suffix;
  bool fuse_unk = false;       // neighbouring unknown characters are one token
  bool byte_fallback = false;  // unknown characters become <0xAB> tokens, where the vocabulary has them
  bool ignore_merges = false;  // a word that is a token is taken whole
};

/// DataError when a merge names a token that the vocabulary lacks. `where` begins messages.
std::unique_ptr<const Model> make_bpe(BpeOptions options, const std::string& where);

}  // namespace tessera::text
