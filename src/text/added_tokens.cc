#include "text/added_tokens.h"

#include <algorithm>

#include "text/character_classes.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

bool matches(const AlignedText& text, std::size_t at, std::size_t end, const std::u32string& pattern) {
  if (end - at < pattern.size()) return false;
  for (std::size_t i = 0; i < pattern.size(); ++i)
    if (text[at + i].c != pattern[i]) return false;
  return true;
}

}  // namespace

AddedTokenList::AddedTokenList(const Model& model, std::vector<AddedToken> tokens, std::int64_t first_id)
    : model_(model), tokens_(std::move(tokens)), first_id_(first_id) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    by_content_[tokens_[i].content] = i;
    highest_ = std::max(highest_, std::int64_t{tokens_[i].id});
  }
}

void AddedTokenList::add(AddedToken token) {
  if (token.content.empty()) return;
  if (const auto it = by_content_.find(token.content); it != by_content_.end()) {
    token.id = tokens_[it->second].id;
    token.special |= tokens_[it->second].special;  // once special, always, as upstream
    tokens_[it->second] = std::move(token);
    return;
  }
  const auto known = model_.find(token.content);
  token.id = known >= 0 ? known : static_cast<std::int32_t>(std::max(first_id_, highest_ + 1));
  highest_ = std::max(highest_, std::int64_t{token.id});
  by_content_[token.content] = tokens_.size();
  tokens_.push_back(std::move(token));
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer, Special special)
    : tokens_(std::move(tokens)), special_(special) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto& token = tokens_[i];
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= by_id_.size()) by_id_.resize(id + 1, -1);
    by_id_[id] = static_cast<std::int32_t>(i);
    by_content_[token.content] = i;
    auto spelling = align(token.content);
    if (token.normalized && normalizer) normalizer->normalize(spelling, 0);
    std::u32string text;
    for (const auto& a : spelling) text += a.c;
    if (text.empty()) continue;
    auto& patterns = token.normalized ? normalized_ : raw_;
    patterns.by_first[text[0]].push_back({text, i});
    patterns.may_begin.set(text[0] % patterns.may_begin.size());
  }
  for (auto* patterns : {&raw_, &normalized_})
    for (auto& [first, list] : patterns->by_first)
      std::sort(list.begin(), list.end(), [this](const Pattern& a, const Pattern& b) {
        if (a.text.size() != b.text.size()) return a.text.size() > b.text.size();
        if (tokens_[a.token].special != tokens_[b.token].special) return tokens_[a.token].special;
        return a.token < b.token;  // normalizers make several alike
      });
}

Pieces AddedTokens::extract(AlignedText input, const Normalizer* normalizer) const {
  Pieces raw;
  raw.text = std::move(input);
  if (!raw.text.empty()) raw.list.push_back({0, raw.text.size(), -1});
  if (!raw_.by_first.empty()) cut(raw, raw_);
  Pieces out;
  if (raw.list.size() == 1 && raw.list[0].token < 0) {  // no added token: nothing to copy
    out = std::move(raw);
    if (normalizer) normalizer->normalize(out.text, 0);
    out.list[0].end = out.text.size();
  } else {
    AlignedText part;
    for (auto piece : raw.list) {
      part.assign(raw.text.begin() + static_cast<std::ptrdiff_t>(piece.begin),
                  raw.text.begin() + static_cast<std::ptrdiff_t>(piece.end));
      if (piece.token < 0 && normalizer) normalizer->normalize(part, part[0].begin);
      piece.begin = out.text.size();
      out.text.insert(out.text.end(), part.begin(), part.end());
      piece.end = out.text.size();
      out.list.push_back(piece);
    }
  }
  std::erase_if(out.list, [](const Piece& piece) { return piece.begin == piece.end; });
  if (!normalized_.by_first.empty()) cut(out, normalized_);
  return out;
}

void AddedTokens::cut(Pieces& pieces, const Patterns& patterns) const {
  std::vector<Piece> out;
  for (const auto& piece : pieces.list) {
    if (piece.token >= 0)
      out.push_back(piece);
    else
      cut_piece(pieces.text, piece, patterns, out);
  }
  pieces.list.swap(out);
}

void AddedTokens::cut_piece(const AlignedText& text, const Piece& piece, const Patterns& patterns,
                            std::vector<Piece>& out) const {
  auto open = piece.begin;
  for (auto at = piece.begin; at < piece.end;) {
    if (!patterns.may_begin[text[at].c % patterns.may_begin.size()]) {
      ++at;
      continue;
    }
    const auto bucket = patterns.by_first.find(text[at].c);
    const Pattern* hit = nullptr;
    if (bucket != patterns.by_first.end())
      for (const auto& pattern : bucket->second)
        if (matches(text, at, piece.end, pattern.text)) {
          hit = &pattern;
          break;
        }
    if (!hit) {
      ++at;
      continue;
    }
    const auto& token = tokens_[hit->token];
    auto begin = at, end = at + hit->text.size();
    at = end;  // white space that rstrip takes below may still begin the next token, as upstream
    if (token.special && special_ == Special::kText) continue;
    if (token.single_word &&
        ((begin > piece.begin && is_word(text[begin - 1].c)) || (end < piece.end && is_word(text[end].c))))
      continue;
    if (token.lstrip) {
      while (begin > piece.begin && is_whitespace(text[begin - 1].c)) --begin;
      begin = std::max(begin, open);
    }
    if (token.rstrip)
      while (end < piece.end && is_whitespace(text[end].c)) ++end;
    if (open < begin) out.push_back({open, begin, -1});
    if (begin < end) out.push_back({begin, end, token.id});
    open = end;
  }
  if (open < piece.end) out.push_back({open, piece.end, -1});
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  auto it = by_content_.find(content);
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id < 0 || index >= by_id_.size() || by_id_[index] < 0 ? nullptr
                                                               : &tokens_[static_cast<std::size_t>(by_id_[index])];
}

std::int32_t AddedTokens::max_id() const {
  return static_cast<std::int32_t>(by_id_.size()) - 1;
}

}  // namespace tessera::text
