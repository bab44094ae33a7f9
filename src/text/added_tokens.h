#pragma once
// Tokens that are found in the text before the model sees it: special tokens, and those that a user added.
#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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
  std::optional<bool> normalized =
      {};                // looked for after the normalizer, and in its spelling; by default if not special
  bool special = false;  // left out by decode(skip_special_tokens)

  bool is_normalized() const { return normalized.value_or(!special); }
  bool operator==(const AddedToken&) const = default;
};

/// Added tokens as the tokenizers package collects them. A token has the id that it has already, among the added ones
/// or in the model, else the one behind all added ones, and at least `first_id`; its own `id` is not looked at.
class AddedTokenList {
 public:
  struct Spelling {  // one way in which a token is looked for
    std::string content;
    bool normalized = false;
  };
  explicit AddedTokenList(std::int64_t first_id = 0) : first_id_(first_id) {}

  /// One that is there already takes the new flags and stays special, but is still looked for in the old way, and in
  /// the new one too unless it was special; special tokens of a batch go before its others. One that is as it was
  /// before its batch says nothing, though another of the batch has changed it.
  void add(const std::vector<AddedToken>& batch, const Model& model);
  const AddedToken* find(std::string_view content) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  std::vector<Spelling> spellings() const;  // of equal ones the first counts

 private:
  /// `before`: the tokens when its batch began.
  void add_one(AddedToken token, const std::vector<AddedToken>& before, const Model& model);

  std::vector<AddedToken> tokens_;
  std::map<std::string, std::size_t, std::less<>> by_content_;
  std::set<std::string, std::less<>> special_contents_;
  std::vector<Spelling> special_, others_;
  std::int64_t first_id_, highest_ = -1;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  enum class Special { kFound, kText };  // kText: special tokens in a text are cut like any other part of it
  AddedTokens(AddedTokenList list, const Normalizer* normalizer, Special special);

  /// The input -> normalized pieces, the added tokens among them.
  Pieces extract(AlignedText input, const Normalizer* normalizer) const;

  const AddedTokenList& list() const { return list_; }
  const std::vector<AddedToken>& tokens() const { return list_.tokens(); }
  const AddedToken* find(std::string_view content) const { return list_.find(content); }
  const AddedToken* find(std::int32_t id) const;
  std::int32_t max_id() const;  // -1: none

 private:
  struct Pattern {
    std::u32string text;
    std::size_t token = 0, rank = 0;  // rank: of equal texts the lowest is found
  };
  struct Patterns {
    std::unordered_map<char32_t, std::vector<Pattern>> by_first;  // code point; longest first
    std::bitset<1024> may_begin;                                  // by the code point's low bits
    std::optional<Pattern> empty;                                 // of a token that the normalizer leaves nothing of
    bool none() const { return by_first.empty() && !empty; }
  };

  /// The one with a text that stands at `at`; null: none.
  const Pattern* pattern_at(const AlignedText& text, std::size_t at, std::size_t end, const Patterns& patterns) const;
  void cut(Pieces& pieces, const Patterns& patterns) const;
  void cut_piece(const AlignedText& text, const Piece& piece, const Patterns& patterns, std::vector<Piece>& out) const;

  AddedTokenList list_;
  std::vector<std::int32_t> by_id_;  // index in tokens(), -1: none; as long as the highest id asks for
  Patterns raw_, normalized_;
  Special special_ = Special::kFound;
};

}  // namespace tessera::text
