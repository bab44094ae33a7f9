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

void AddedTokenList::add(const std::vector<AddedToken>& batch, const Model& model) {
  for (const auto& token : batch)
    if (token.special && !token.content.empty() && special_contents_.insert(token.content).second)
      special_.push_back({token.content, token.is_normalized()});
  const auto before = tokens_;
  for (const auto& token : batch)
    if (!token.content.empty()) add_one(token, before, model);
}

void AddedTokenList::add_one(AddedToken token, const std::vector<AddedToken>& before, const Model& model) {
  token.normalized = token.is_normalized();
  token.special = special_contents_.contains(token.content);
  const auto known = by_content_.find(token.content);
  if (known != by_content_.end()) {
    const auto at = known->second;
    token.id = tokens_[at].id;
    if (at < before.size() && token == before[at]) return;
    tokens_[at] = token;
  } else {
    const auto in_model = model.find(token.content);
    token.id = in_model >= 0 ? in_model : static_cast<std::int32_t>(std::max(first_id_, highest_ + 1));
    highest_ = std::max(highest_, std::int64_t{token.id});
    by_content_[token.content] = tokens_.size();
    tokens_.push_back(token);
  }
  if (!token.special) others_.push_back({std::move(token.content), *token.normalized});
}

const AddedToken* AddedTokenList::find(std::string_view content) const {
  const auto it = by_content_.find(content);
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

std::vector<AddedTokenList::Spelling> AddedTokenList::spellings() const {
  auto out = special_;
  out.insert(out.end(), others_.begin(), others_.end());
  return out;
}

AddedTokens::AddedTokens(AddedTokenList list, const Normalizer* normalizer, Special special)
    : list_(std::move(list)), special_(special) {
  for (std::size_t i = 0; i < tokens().size(); ++i) {
    const auto id = static_cast<std::size_t>(tokens()[i].id);
    if (id >= by_id_.size()) by_id_.resize(id + 1, -1);
    by_id_[id] = static_cast<std::int32_t>(i);
  }
  std::size_t rank = 0;
  for (const auto& spelling : list_.spellings()) {
    auto aligned = align(spelling.content);
    if (spelling.normalized && normalizer) normalizer->normalize(aligned, 0);
    std::u32string text;
    for (const auto& a : aligned) text += a.c;
    auto& patterns = spelling.normalized ? normalized_ : raw_;
    const auto token = static_cast<std::size_t>(find(spelling.content) - tokens().data());
    if (text.empty()) {
      if (!patterns.empty) patterns.empty = Pattern{text, token, rank++};
      continue;
    }
    patterns.may_begin.set(text[0] % patterns.may_begin.size());
    patterns.by_first[text[0]].push_back({text, token, rank++});
  }
  for (auto* patterns : {&raw_, &normalized_})
    for (auto& [first, same] : patterns->by_first)
      std::sort(same.begin(), same.end(), [](const Pattern& a, const Pattern& b) {
        if (a.text.size() != b.text.size()) return a.text.size() > b.text.size();
        return a.rank < b.rank;  // normalizers make several alike
      });
}

Pieces AddedTokens::extract(AlignedText input, const Normalizer* normalizer) const {
  Pieces raw;
  raw.text = std::move(input);
  if (!raw.text.empty()) raw.list.push_back({0, raw.text.size(), -1});
  if (!raw_.none()) cut(raw, raw_);
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
  if (!normalized_.none()) cut(out, normalized_);
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

const AddedTokens::Pattern* AddedTokens::pattern_at(const AlignedText& text, std::size_t at, std::size_t end,
                                                    const Patterns& patterns) const {
  if (at == end || !patterns.may_begin[text[at].c % patterns.may_begin.size()]) return nullptr;
  const auto bucket = patterns.by_first.find(text[at].c);
  if (bucket == patterns.by_first.end()) return nullptr;
  for (const auto& pattern : bucket->second)
    if (matches(text, at, end, pattern.text)) return &pattern;
  return nullptr;
}

// A pattern without text stands between any two code points, but for where a match has just ended: upstream's search
// then cuts the text into its code points.
void AddedTokens::cut_piece(const AlignedText& text, const Piece& piece, const Patterns& patterns,
                            std::vector<Piece>& out) const {
  auto open = piece.begin;
  std::optional<std::size_t> last_end;
  for (auto at = piece.begin; at < piece.end + (patterns.empty ? 1 : 0);) {
    const Pattern* hit = pattern_at(text, at, piece.end, patterns);
    if (!hit && patterns.empty && at != last_end) hit = &*patterns.empty;
    if (!hit) {
      ++at;
      continue;
    }
    const auto& token = tokens()[hit->token];
    auto begin = at, end = at + hit->text.size();
    last_end = at = end;  // white space that rstrip takes below may still begin the next token, as upstream
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

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id < 0 || index >= by_id_.size() || by_id_[index] < 0 ? nullptr
                                                               : &tokens()[static_cast<std::size_t>(by_id_[index])];
}

std::int32_t AddedTokens::max_id() const {
  return static_cast<std::int32_t>(by_id_.size()) - 1;
}

}  // namespace tessera::text
