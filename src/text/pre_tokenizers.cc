#include <algorithm>
#include <functional>

#include "text/character_classes.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

struct Run {
  std::size_t begin, end;
  bool delimiter;
};

// Adjoining runs -> those that stay, after the delimiters went where `behavior` says.
void merge(std::vector<Run>& runs, Delimiters behavior) {
  std::vector<Run> out;
  switch (behavior) {
    case Delimiters::kRemoved:
      std::erase_if(runs, [](const Run& r) { return r.delimiter; });
      return;
    case Delimiters::kIsolated:
      return;
    case Delimiters::kContiguous:
      for (const auto& r : runs)
        if (!out.empty() && out.back().delimiter == r.delimiter)
          out.back().end = r.end;
        else
          out.push_back(r);
      break;
    case Delimiters::kMergedWithPrevious: {
      bool after_delimiter = false;
      for (const auto& r : runs) {
        if (r.delimiter && !after_delimiter && !out.empty())
          out.back().end = r.end;
        else
          out.push_back(r);
        after_delimiter = r.delimiter;
      }
      break;
    }
    case Delimiters::kMergedWithNext: {
      bool before_delimiter = false;
      for (auto r = runs.rbegin(); r != runs.rend(); ++r) {
        if (r->delimiter && !before_delimiter && !out.empty())
          out.back().begin = r->begin;
        else
          out.push_back(*r);
        before_delimiter = r->delimiter;
      }
      std::reverse(out.begin(), out.end());
      break;
    }
  }
  runs.swap(out);
}

// Cuts every open piece by the runs that `find` gives for it.
template <class F>
void cut_pieces(Pieces& pieces, Delimiters behavior, F find) {
  std::vector<Piece> out;
  std::vector<Run> runs;
  for (const auto& piece : pieces.list) {
    if (piece.token >= 0) {
      out.push_back(piece);
      continue;
    }
    runs.clear();
    find(pieces.text, piece, runs);
    merge(runs, behavior);
    for (const auto& r : runs)
      if (r.end > r.begin) out.push_back({r.begin, r.end, -1});
  }
  pieces.list.swap(out);
}

// Every code point of the class is a delimiter of its own.
template <class F>
void runs_by_class(const AlignedText& text, const Piece& piece, F is_delimiter, std::vector<Run>& runs) {
  auto open = piece.begin;
  for (auto i = piece.begin; i < piece.end; ++i) {
    if (!is_delimiter(text[i].c)) continue;
    if (open < i) runs.push_back({open, i, false});
    runs.push_back({i, i + 1, true});
    open = i + 1;
  }
  if (open < piece.end) runs.push_back({open, piece.end, false});
}

template <class F>
class ByClass final : public PreTokenizer {
 public:
  ByClass(F is_delimiter, Delimiters behavior) : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void cut(Pieces& pieces) const override {
    cut_pieces(pieces, behavior_, [this](const AlignedText& text, const Piece& piece, std::vector<Run>& runs) {
      runs_by_class(text, piece, is_delimiter_, runs);
    });
  }

 private:
  F is_delimiter_;
  Delimiters behavior_;
};

class Whitespace final : public PreTokenizer {
 public:
  void cut(Pieces& pieces) const override {
    const auto kind = [](char32_t c) { return is_whitespace(c) ? 0 : is_word(c) ? 1 : 2; };
    cut_pieces(pieces, Delimiters::kRemoved, [&](const AlignedText& text, const Piece& piece, std::vector<Run>& runs) {
      for (auto i = piece.begin; i < piece.end;) {
        auto end = i + 1;
        while (end < piece.end && kind(text[end].c) == kind(text[i].c)) ++end;
        runs.push_back({i, end, kind(text[i].c) == 0});
        i = end;
      }
    });
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::size_t length) : length_(length) {}
  void cut(Pieces& pieces) const override {
    cut_pieces(pieces, Delimiters::kIsolated, [this](const AlignedText&, const Piece& piece, std::vector<Run>& runs) {
      for (auto i = piece.begin; i < piece.end; i += length_)
        runs.push_back({i, std::min(i + length_, piece.end), true});
    });
  }

 private:
  std::size_t length_;
};

class Split final : public PreTokenizer {
 public:
  Split(const std::string& pattern, Delimiters behavior, bool invert, const std::string& where)
      : regex_(pattern, where), behavior_(behavior), invert_(invert) {}
  void cut(Pieces& pieces) const override {
    cut_pieces(pieces, behavior_, [this](const AlignedText& text, const Piece& piece, std::vector<Run>& runs) {
      auto at = piece.begin;
      std::size_t byte = 0;
      const auto advance_to = [&](std::size_t target, bool delimiter) {
        const auto begin = at;
        while (byte < target && at < piece.end) byte += static_cast<std::size_t>(utf8_length(text[at++].c));
        runs.push_back({begin, at, delimiter});
      };
      for (const auto& [begin, end] : regex_.find_all(text.data() + piece.begin, text.data() + piece.end)) {
        if (begin > byte) advance_to(begin, invert_);
        advance_to(end, !invert_);  // an empty match cuts too
      }
      if (at < piece.end) advance_to(std::string::npos, invert_);
    });
  }

 private:
  Regex regex_;
  Delimiters behavior_;
  bool invert_;
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const MetaspaceOptions& options) : options_(options) {}
  void cut(Pieces& pieces) const override {
    Pieces out;
    out.text.reserve(pieces.text.size() + pieces.list.size());
    out.list.reserve(pieces.list.size());
    for (auto piece : pieces.list) {
      const auto begin = out.text.size();
      const auto first = pieces.text[piece.begin];
      const bool wanted =
          options_.prepend == PrependScheme::kAlways || (options_.prepend == PrependScheme::kFirst && first.begin == 0);
      if (piece.token < 0 && wanted && first.c != options_.replacement && first.c != ' ')
        out.text.push_back({options_.replacement, first.begin, first.end});
      for (auto i = piece.begin; i < piece.end; ++i) {
        auto a = pieces.text[i];
        if (piece.token < 0 && a.c == ' ') a.c = options_.replacement;
        out.text.push_back(a);
      }
      piece.begin = begin;
      piece.end = out.text.size();
      out.list.push_back(piece);
    }
    if (options_.split)
      cut_pieces(out, Delimiters::kMergedWithNext,
                 [this](const AlignedText& text, const Piece& piece, std::vector<Run>& runs) {
                   runs_by_class(text, piece, [this](char32_t c) { return c == options_.replacement; }, runs);
                 });
    pieces = std::move(out);
  }

 private:
  MetaspaceOptions options_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<PreTokenizerPtr> parts) : parts_(std::move(parts)) {}
  void cut(Pieces& pieces) const override {
    for (const auto& part : parts_) {
      part->cut(pieces);
      check_growth(pieces.text, pieces.text.size());
    }
  }

 private:
  std::vector<PreTokenizerPtr> parts_;
};

template <class F>
PreTokenizerPtr by_class(F is_delimiter, Delimiters behavior) {
  return std::make_unique<ByClass<F>>(is_delimiter, behavior);
}

}  // namespace

PreTokenizerPtr make_metaspace(const MetaspaceOptions& options) {
  return std::make_unique<Metaspace>(options);
}
PreTokenizerPtr make_whitespace_split() {
  return by_class(&is_whitespace, Delimiters::kRemoved);
}
PreTokenizerPtr make_whitespace() {
  return std::make_unique<Whitespace>();
}
PreTokenizerPtr make_punctuation(Delimiters behavior) {
  return by_class(&is_punctuation, behavior);
}
PreTokenizerPtr make_bert() {
  std::vector<PreTokenizerPtr> parts;
  parts.push_back(make_whitespace_split());
  parts.push_back(make_punctuation(Delimiters::kIsolated));
  return make_sequence(std::move(parts));
}
PreTokenizerPtr make_digits(bool individual) {
  return by_class(&is_number, individual ? Delimiters::kIsolated : Delimiters::kContiguous);
}
PreTokenizerPtr make_fixed_length(std::size_t length) {
  return std::make_unique<FixedLength>(length);
}
PreTokenizerPtr make_char_delimiter(char32_t delimiter) {
  return by_class([delimiter](char32_t c) { return c == delimiter; }, Delimiters::kRemoved);
}
PreTokenizerPtr make_split(const std::string& pattern, Delimiters behavior, bool invert, const std::string& where) {
  return std::make_unique<Split>(pattern, behavior, invert, where);
}
PreTokenizerPtr make_sequence(std::vector<PreTokenizerPtr> parts) {
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

}  // namespace tessera::text
