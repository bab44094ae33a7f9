#pragma once
// Tokens that are found in the text before the model sees it: special tokens, and those that a user added.
#include <bitset>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/aligned_text.h"
#include "text/model.h"
#include "text/normalizer.h"

namespace tessera::text {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool single_word = false;  // only between characters that are not part of a word
  bool lstrip = false;       // takes the white space before it, too
  bool rstrip = false;
  bool normalized = false;  // looked for after the normalizer, and in its spelling
  bool special = false;     // left out by decode(skip_special_tokens)

  bool operator==(const AddedToken&) const = default;
};

/// Collects added tokens and gives them ids: the one that the token has already, among the added ones or in the model,
/// else the one behind all added ones, and at least `first_id`.
class AddedTokenList {
 public:
  AddedTokenList(const Model& model, std::vector<AddedToken> tokens, std::int64_t first_id);
  /// A token that is there already takes the new flags. Its `id` is not looked at.
  void add(AddedToken token);
  bool has(std::string_view content) const { return by_content_.contains(content); }
  std::vector<AddedToken> take() { return std::move(tokens_); }

 private:
  const Model& model_;
  std::vector<AddedToken> tokens_;
  std::map<std::string, std::size_t, std::less<>> by_content_;
  std::int64_t first_id_, highest_ = -1;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  enum class Special { kFound, kText };  // kText: special tokens in a text are cut like any other part of it
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer, Special special);

  /// The input -> normalized pieces, the added tokens among them.
  Pieces extract(AlignedText input, const Normalizer* normalizer) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(std::int32_t id) const;
  std::int32_t max_id() const;  // -1: none

 private:
  struct Pattern {
    std::u32string text;
    std::size_t token = 0;
  };
  struct Patterns {
    std::unordered_map<char32_t, std::vector<Pattern>> by_first;  // code point; longest first
    std::bitset<1024> may_begin;                                  // by the code point's low bits
  };

  void cut(Pieces& pieces, const Patterns& patterns) const;
  void cut_piece(const AlignedText& text, const Piece& piece, const Patterns& patterns, std::vector<Piece>& out) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::int32_t> by_id_;  // index in tokens_, -1: none; as long as the highest id asks for
  std::map<std::string, std::size_t, std::less<>> by_content_;
  Patterns raw_, normalized_;
  Special special_ = Special::kFound;
};

}  // namespace tessera::text
