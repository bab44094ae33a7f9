#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "text/model.h"
#include "text/prefix_trie.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr double kUnknownPenalty = 10.0;  // SentencePiece's

struct Best {  // the best segmentation that ends at a byte
  double score = 0;
  std::int32_t begin = -1;  // of its last token; -1: none found yet
  std::int32_t id = 0;
};

class Unigram final : public Model {
 public:
  Unigram(UnigramOptions options, const std::string& where)
      : pieces_(std::move(options.pieces)), unk_id_(options.unk_id), where_(where) {
    if (pieces_.empty()) throw DataError(where + ": the vocabulary is empty");
    if (unk_id_ < -1 || unk_id_ >= static_cast<std::int64_t>(pieces_.size()))
      throw DataError(fmt::format("{}: unk_id {} is not among the {} pieces", where, unk_id_, pieces_.size()));
    double lowest = pieces_[0].second;
    std::vector<std::pair<std::string_view, std::int32_t>> keys;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      lowest = std::min(lowest, pieces_[i].second);
      if (!pieces_[i].first.empty()) keys.emplace_back(pieces_[i].first, -static_cast<std::int32_t>(i));
    }
    // Of equal pieces the last one counts, as upstream.
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first == b.first; }),
               keys.end());
    for (auto& [key, id] : keys) id = -id;
    trie_ = PrefixTrie(std::move(keys));
    unknown_score_ = lowest - kUnknownPenalty;
    if (options.byte_fallback) find_byte_tokens();
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    thread_local std::vector<Best> best;
    search(piece, best);
    const auto first = out.size();
    for (auto end = piece.size(); end > 0;) {
      const auto& b = best[end];
      const auto begin = static_cast<std::size_t>(b.begin);
      const bool unknown = b.id == unk_id_;
      if (unknown && out.size() > first && out.back().id == unk_id_ && out.back().begin == end)
        out.back().begin = begin;
      else
        out.push_back({b.id, begin, end});
      end = begin;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
    if (unk_id_ < 0) return;
    for (auto i = first; i < out.size(); ++i)
      if (out[i].id == unk_id_) i = resolve_unknown(piece, out, i);
  }

  std::int32_t find(std::string_view token) const override { return trie_.find(token); }
  std::int64_t size() const override { return static_cast<std::int64_t>(pieces_.size()); }
  const std::string& token(std::int32_t id) const override { return pieces_[static_cast<std::size_t>(id)].first; }
  std::int32_t unk_id() const override { return unk_id_; }
  bool keeps_unknown_text() const override { return true; }

 private:
  void find_byte_tokens() {
    for (int byte = 0; byte < 256; ++byte) byte_ids_.push_back(trie_.find(fmt::format("<0x{:02X}>", byte)));
  }

  // Viterbi, forward over the bytes at which characters begin.
  void search(std::string_view piece, std::vector<Best>& best) const {
    best.assign(piece.size() + 1, {});
    for (std::size_t begin = 0; begin < piece.size();) {
      auto rest = piece.substr(begin);
      const auto here = best[begin].score;
      const auto whole = rest;
      next_code_point(rest);
      const auto character = whole.size() - rest.size();
      bool known = false;
      const auto offer = [&](std::size_t length, std::int32_t id, double score) {
        auto& target = best[begin + length];
        if (target.begin < 0 || here + score > target.score)
          target = {here + score, static_cast<std::int32_t>(begin), id};
      };
      trie_.each_prefix(whole, [&](std::size_t length, std::int32_t id) {
        offer(length, id, pieces_[static_cast<std::size_t>(id)].second);
        known |= length == character;
      });
      if (!known) {
        if (unk_id_ < 0 && (best[begin + character].begin < 0 || here + unknown_score_ > best[begin + character].score))
          throw DataError(
              fmt::format("{}: the text holds \"{}\", which no piece covers, and the model has no unknown token",
                          where_, whole.substr(0, character)));
        offer(character, unk_id_, unknown_score_);
      }
      begin += character;
    }
  }

  // Joined unknown characters may be a piece after all (one that scores below them), or fall back to bytes. Returns the
  // index of the last token that stands for them.
  std::size_t resolve_unknown(std::string_view piece, std::vector<ModelToken>& out, std::size_t at) const {
    const auto unknown = out[at];
    const auto text = piece.substr(unknown.begin, unknown.end - unknown.begin);
    const auto id = trie_.find(text);
    if (id >= 0) {
      out[at].id = id;
      return at;
    }
    if (byte_ids_.empty()) return at;
    std::vector<ModelToken> bytes;
    for (unsigned char byte : text) {
      if (byte_ids_[byte] < 0) return at;
      bytes.push_back({byte_ids_[byte], unknown.begin, unknown.end});
    }
    const auto position = out.erase(out.begin() + static_cast<std::ptrdiff_t>(at));
    out.insert(position, bytes.begin(), bytes.end());
    return at + bytes.size() - 1;
  }

  std::vector<std::pair<std::string, double>> pieces_;
  std::int32_t unk_id_;
  std::string where_;
  PrefixTrie trie_;
  double unknown_score_ = 0;
  std::vector<std::int32_t> byte_ids_;  // empty: no fallback
};

}  // namespace

std::unique_ptr<const Model> make_unigram(UnigramOptions options, const std::string& where) {
  return std::make_unique<Unigram>(std::move(options), where);
}

}  // namespace tessera::text
