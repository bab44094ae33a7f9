#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "text/model.h"
#include "text/unicode.h"
#include "text/vocabulary.h"
#include "text/word_models.h"

namespace tessera::text {
namespace {

class Lexicon : public Model {
 public:
  Lexicon(Vocabulary vocabulary, std::string unk_token, const std::string& where)
      : vocabulary_(std::move(vocabulary)), unk_token_(std::move(unk_token)), where_(where) {
    if (vocabulary_.count() == 0) throw DataError(where + ": the vocabulary is empty");
    unk_id_ = vocabulary_.find(unk_token_);
  }
  std::int32_t find(std::string_view token) const override { return vocabulary_.find(token); }
  std::int64_t size() const override { return vocabulary_.size(); }
  std::int64_t count() const override { return vocabulary_.count(); }
  const std::string& token(std::int32_t id) const override { return vocabulary_.token(id); }
  std::int32_t unk_id() const override { return unk_id_; }

 protected:
  void unknown(std::string_view piece, std::vector<ModelToken>& out) const {
    if (unk_id_ < 0)
      throw DataError(
          fmt::format("{}: the text holds \"{}\", which the vocabulary lacks, and the unknown token \"{}\" is "
                      "not in it either",
                      where_, piece, unk_token_));
    out.push_back({unk_id_, 0, piece.size()});
  }

  Vocabulary vocabulary_;

 private:
  std::string unk_token_, where_;
  std::int32_t unk_id_ = -1;
};

class WordLevel final : public Lexicon {
 public:
  using Lexicon::Lexicon;
  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    if (const auto id = vocabulary_.find(piece); id >= 0)
      out.push_back({id, 0, piece.size()});
    else
      unknown(piece, out);
  }
};

class WordPiece final : public Lexicon {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options, const std::string& where)
      : Lexicon(std::move(vocabulary), options.unk_token, where), o_(std::move(options)) {
    for (std::int64_t id = 0; id < vocabulary_.size(); ++id)
      longest_ = std::max(longest_, vocabulary_.token(static_cast<std::int32_t>(id)).size());
  }

  void tokenize(std::string_view piece, std::vector<ModelToken>& out) const override {
    if (count_points(piece) > o_.max_input_chars_per_word) return unknown(piece, out);
    const auto first = out.size();
    thread_local std::string key;
    for (std::size_t begin = 0; begin < piece.size();) {
      key.assign(begin > 0 ? o_.continuing_subword_prefix : "");
      const auto prefix = key.size();
      key.append(piece.substr(begin, longest_));
      auto end = begin + key.size() - prefix;
      std::int32_t id = -1;
      while (end > begin) {  // the longest token that begins the rest
        if ((end == piece.size() || !is_continuation(piece[end])) &&
            (id = vocabulary_.find({key.data(), prefix + end - begin})) >= 0)
          break;
        --end;
      }
      if (id < 0) {
        out.resize(first);
        return unknown(piece, out);
      }
      out.push_back({id, begin, end});
      begin = end;
    }
  }

 private:
  WordPieceOptions o_;
  std::size_t longest_ = 0;  // bytes of a token
};

}  // namespace

std::unique_ptr<const Model> make_word_level(Vocabulary vocabulary, const std::string& unk_token,
                                             const std::string& where) {
  return std::make_unique<WordLevel>(std::move(vocabulary), unk_token, where);
}

std::unique_ptr<const Model> make_word_piece(Vocabulary vocabulary, WordPieceOptions options,
                                             const std::string& where) {
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(options), where);
}

}  // namespace tessera::text
