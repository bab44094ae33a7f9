#include <array>

#include "text/decoder.h"

namespace tessera::text {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  const std::size_t whole = text.size();
  std::string out;
  std::size_t at = 0;
  for (auto hit = text.find(from); hit != std::string::npos; hit = text.find(from, at)) {
    check_decoded(whole, out.size());
    out.append(text, at, hit - at).append(to);
    at = hit + from.size();
  }
  if (at == 0) return;
  text = out.append(text, at, std::string::npos);
}

// The decoders of tokenizer.json know one rule more than transformers' clean-up: "do not".
void close_up(std::string& text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules{{{" .", "."},
                                                                                  {" ?", "?"},
                                                                                  {" !", "!"},
                                                                                  {" ,", ","},
                                                                                  {" ' ", "'"},
                                                                                  {" n't", "n't"},
                                                                                  {" 'm", "'m"},
                                                                                  {" do not", " don't"},
                                                                                  {" 's", "'s"},
                                                                                  {" 've", "'ve"},
                                                                                  {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

class WordPieceDecoder final : public Decoder {
 public:
  WordPieceDecoder(const std::string& prefix, bool cleanup) : prefix_(prefix), cleanup_(cleanup) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        if (tokens[i].starts_with(prefix_)) {
          tokens[i].erase(0, prefix_.size());
        } else {
          std::string apart(1, ' ');
          apart += tokens[i];
          tokens[i].swap(apart);
        }
      }
      if (cleanup_) close_up(tokens[i]);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class LiteralReplace final : public Decoder {
 public:
  LiteralReplace(const std::string& text, const std::string& content) : text_(text), content_(content) {}
  void decode(std::vector<std::string>& tokens) const override {
    const std::size_t before = bytes_of(tokens);
    std::size_t bytes = 0;
    for (auto& token : tokens) {
      replace_all(token, text_, content_);
      check_decoded(before, bytes += token.size());
    }
  }

 private:
  std::string text_, content_;
};

class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(const std::string& suffix) : suffix_(suffix) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix_, i + 1 < tokens.size() ? " " : "");
  }

 private:
  std::string suffix_;
};

class Ctc final : public Decoder {
 public:
  Ctc(const std::string& pad, const std::string& delimiter, bool cleanup)
      : pad_(pad), delimiter_(delimiter), cleanup_(cleanup) {}
  void decode(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i] == tokens[i - 1]) continue;
      auto token = tokens[i];
      replace_all(token, pad_, "");
      if (cleanup_) {
        close_up(token);
        replace_all(token, delimiter_, " ");
      }
      if (!token.empty()) out.push_back(std::move(token));
    }
    tokens.swap(out);
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

}  // namespace

DecoderPtr make_word_piece_decoder(const std::string& prefix, bool cleanup) {
  return std::make_unique<WordPieceDecoder>(prefix, cleanup);
}
DecoderPtr make_literal_replace_decoder(const std::string& text, const std::string& content) {
  return std::make_unique<LiteralReplace>(text, content);
}
DecoderPtr make_bpe_decoder(const std::string& suffix) {
  return std::make_unique<BpeDecoder>(suffix);
}
DecoderPtr make_ctc_decoder(const std::string& pad, const std::string& delimiter, bool cleanup) {
  return std::make_unique<Ctc>(pad, delimiter, cleanup);
}

}  // namespace tessera::text
