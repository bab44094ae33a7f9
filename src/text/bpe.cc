#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "text/bpe_merge.h"
#include "text/metaspace.h"
#include "text/unicode.h"
#include "text/word_cache.h"

namespace tessera::text {
namespace {

class Bpe final : public Model {
 public:
  Bpe(BpeOptions options, const std::string& where) : o_(std::move(options)), where_(where) {
    if (o_.vocabulary.count() == 0) throw DataError(where + ": the vocabulary is empty");
    add_merges();
    unk_id_ = o_.unk_token.empty() ? -1 : o_.vocabulary.find(o_.unk_token);
    for (char32_t c = 0; c < kCommon; ++c) {
      std::string text;
      append_utf8(c, text);
      common_[c] = o_.vocabulary.find(text);
    }
    plain_ = o_.continuing_subword_prefix.empty() && o_.end_of_word_suffix.empty();
    if (o_.byte_fallback)
      for (int byte = 0; byte < 256; ++byte) byte_ids_.push_back(o_.vocabulary.find(fmt::format("<0x{:02X}>", byte)));
    find_cuts();
    o_.merges = {};
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    std::size_t begin = 0;
    if (cuts_at_spaces_) {
      for (auto at = piece.find(kMetaspace, 1); at != std::string_view::npos;
           at = piece.find(kMetaspace, at + kMetaspace.size())) {
        if (!parts(piece.substr(0, at))) continue;
        word(piece.substr(begin, at - begin), begin, out);
        begin = at;
      }
    }
    word(piece.substr(begin), begin, out);
  }

  std::int32_t find(std::string_view token) const override { return o_.vocabulary.find(token); }
  std::int64_t size() const override { return o_.vocabulary.size(); }
  std::int64_t count() const override { return o_.vocabulary.count(); }
  const std::string& token(std::int32_t id) const override { return o_.vocabulary.token(id); }
  std::int32_t unk_id() const override { return unk_id_; }

 private:
  static constexpr char32_t kCommon = 0x800;

  void add_merges() {
    const auto prefix = o_.continuing_subword_prefix.size();
    merges_.reserve(o_.merges.size());
    std::string joined;
    for (std::size_t rank = 0; rank < o_.merges.size(); ++rank) {
      const auto& [left, right] = o_.merges[rank];
      if (right.size() < prefix)
        throw DataError(fmt::format("{}.merges[{}]: \"{}\" lacks the prefix \"{}\"", where_, rank, right,
                                    o_.continuing_subword_prefix));
      joined.assign(left).append(right.substr(prefix));
      const auto id_of = [&](std::string_view token) {
        const auto id = o_.vocabulary.find(token);
        if (id < 0)
          throw DataError(fmt::format("{}.merges[{}]: the vocabulary has no token \"{}\"", where_, rank, token));
        return id;
      };
      const auto left_id = id_of(left), right_id = id_of(right);
      merges_.add(left_id, right_id, {static_cast<std::int32_t>(rank), id_of(joined)});
    }
  }

  // A piece may be a whole text (Llama 2 has no pre-tokenizer). No merge reaches over a place where a space sign
  // follows a character that no merged token has before a space sign, so the text is cut there and words are found in
  // the cache.
  void find_cuts() {
    const bool covers =
        unk_id_ >= 0 || (!byte_ids_.empty() && *std::min_element(byte_ids_.begin(), byte_ids_.end()) >= 0);
    cuts_at_spaces_ = plain_ && covers && !o_.ignore_merges && o_.vocabulary.find(kMetaspace) >= 0;
    for (const auto& [left, right] : o_.merges) {
      if (left == o_.unk_token || left.starts_with("<0x") || right.starts_with("<0x")) cuts_at_spaces_ = false;
      const auto joined = std::string(left).append(right);
      for (auto at = joined.find(kMetaspace, 1); at != std::string::npos; at = joined.find(kMetaspace, at + 1))
        joined_.push_back(last_code_point(std::string_view(joined).substr(0, at)));
    }
    std::sort(joined_.begin(), joined_.end());
    joined_.erase(std::unique(joined_.begin(), joined_.end()), joined_.end());
    joined_.shrink_to_fit();
  }

  static char32_t last_code_point(std::string_view text) {
    auto begin = text.size() - 1;
    while (begin > 0 && is_continuation(text[begin])) --begin;
    text.remove_prefix(begin);
    return next_code_point(text);
  }

  bool parts(std::string_view before) const {
    return !before.ends_with(kMetaspace) &&
           !std::binary_search(joined_.begin(), joined_.end(), last_code_point(before));
  }

  // Appends the tokens of a part of the piece that starts at byte `origin`.
  void word(std::string_view text, std::size_t origin, std::vector<ModelToken>& out) const {
    const auto first = out.size();
    const bool cached = text.size() <= WordCache::kLongest;
    const auto hash = cached ? hash_bytes(text) : 0;
    if (!cached || !WordCache::find(cache_, text, hash, out)) {
      thread_local std::vector<Symbol> symbols;
      symbols.clear();
      const auto whole = o_.ignore_merges ? o_.vocabulary.find(text) : -1;
      if (whole >= 0)
        symbols.push_back({whole, static_cast<std::uint32_t>(text.size())});
      else
        start(text, symbols);
      merge_symbols(merges_, symbols);
      std::size_t at = 0;
      for (const auto& s : symbols) {
        out.push_back({s.id, at, at + s.length});
        at += s.length;
      }
      if (cached) WordCache::put(cache_, text, hash, out, first);
    }
    if (origin == 0) return;
    for (auto i = first; i < out.size(); ++i) {
      out[i].begin += origin;
      out[i].end += origin;
    }
  }

  // One symbol a character. Lengths add up as in the reference: what vanishes is not counted.
  void start(std::string_view text, std::vector<Symbol>& symbols) const {
    Symbol unknown;  // not yet appended; length 0: none
    const auto flush = [&] {
      if (unknown.length > 0) symbols.push_back(unknown);
      unknown.length = 0;
    };
    for (auto rest = text; !rest.empty();) {
      const bool first = rest.size() == text.size();
      const auto whole = rest;
      const auto c = next_code_point(rest);
      const auto character = whole.substr(0, whole.size() - rest.size());
      const auto length = static_cast<std::uint32_t>(character.size());
      const auto id = plain_ ? (c < kCommon ? common_[c] : o_.vocabulary.find(character))
                             : o_.vocabulary.find(decorated(character, first, rest.empty()));
      if (id >= 0) {
        flush();
        symbols.push_back({id, length});
      } else if (!fall_back(plain_ ? std::string(character) : decorated(character, first, rest.empty()), symbols)) {
        if (o_.unk_token.empty()) continue;
        if (unk_id_ < 0)
          throw DataError(
              fmt::format("{}: the text holds \"{}\", which the vocabulary lacks, and the unknown token \"{}\" "
                          "is not in it either",
                          where_, character, o_.unk_token));
        if (!o_.fuse_unk) flush();
        unknown = {unk_id_, unknown.length + length};
      }
    }
    flush();
  }

  std::string decorated(std::string_view character, bool first, bool last) const {
    return (first ? "" : o_.continuing_subword_prefix) + std::string(character) + (last ? o_.end_of_word_suffix : "");
  }

  bool fall_back(const std::string& character, std::vector<Symbol>& symbols) const {
    if (byte_ids_.empty()) return false;
    for (unsigned char byte : character)
      if (byte_ids_[byte] < 0) return false;
    for (unsigned char byte : character) symbols.push_back({byte_ids_[byte], 1});
    return true;
  }

  BpeOptions o_;
  std::string where_;
  MergeTable merges_;
  std::int32_t unk_id_ = -1;
  std::array<std::int32_t, kCommon> common_{};  // id of a code point
  std::vector<std::int32_t> byte_ids_;          // empty: no fallback
  std::vector<char32_t> joined_;                // see find_cuts(); sorted
  bool plain_ = true, cuts_at_spaces_ = false;
  std::uint32_t cache_ = WordCache::new_model();
};

}  // namespace

std::unique_ptr<const Model> make_bpe(BpeOptions options, const std::string& where) {
  return std::make_unique<Bpe>(std::move(options), where);
}

}  // namespace tessera::text
