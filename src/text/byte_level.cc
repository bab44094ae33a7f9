#include "text/byte_level.h"

#include <array>

#include "text/unicode.h"

namespace tessera::text {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr char32_t kSigns = 0x144;  // one past the last sign

struct Alphabet {
  std::array<char32_t, 256> sign{};
  std::array<std::int16_t, kSigns> byte{};
  Alphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      sign[b] = printable ? b : next++;
      byte[sign[b]] = static_cast<std::int16_t>(b);
    }
  }
};
const Alphabet kAlphabet;

class ByteLevelNormalizer final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    AlignedText out;
    out.reserve(text.size() + text.size() / 8);
    to_byte_signs(text.data(), text.data() + text.size(), out);
    text.swap(out);
  }
};

class ByteLevel final : public PreTokenizer {
 public:
  explicit ByteLevel(const ByteLevelOptions& options) : add_prefix_space_(options.add_prefix_space) {
    if (options.use_regex) split_ = make_split(kGpt2Pattern, Delimiters::kIsolated, false, "ByteLevel");
  }
  void cut(Pieces& pieces) const override {
    if (add_prefix_space_) prefix(pieces);
    if (split_) split_->cut(pieces);
    AlignedText out;
    out.reserve(pieces.text.size() + pieces.text.size() / 8);
    for (auto& piece : pieces.list) {
      const auto begin = out.size();
      const auto *from = pieces.text.data() + piece.begin, *to = pieces.text.data() + piece.end;
      if (piece.token >= 0)
        out.insert(out.end(), from, to);
      else
        to_byte_signs(from, to, out);
      piece.begin = begin;
      piece.end = out.size();
    }
    pieces.text.swap(out);
  }

 private:
  static void prefix(Pieces& pieces) {
    AlignedText out;
    out.reserve(pieces.text.size() + pieces.list.size());
    for (auto& piece : pieces.list) {
      const auto begin = out.size();
      const auto& first = pieces.text[piece.begin];
      if (piece.token < 0 && first.c != ' ') out.push_back({' ', first.begin, first.end});
      out.insert(out.end(), pieces.text.data() + piece.begin, pieces.text.data() + piece.end);
      piece.begin = begin;
      piece.end = out.size();
    }
    pieces.text.swap(out);
  }

  bool add_prefix_space_;
  PreTokenizerPtr split_;
};

class ByteLevelDecoder final : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string bytes, one;
    for (const auto& token : tokens) {
      one.clear();
      bool all = true;
      for (std::string_view rest = token; all && !rest.empty();) {
        const int byte = sign_to_byte(next_code_point(rest));
        all = byte >= 0;
        one += static_cast<char>(byte);
      }
      bytes += all ? one : token;
    }
    std::string text;
    text.reserve(bytes.size());
    for (std::string_view rest = bytes; !rest.empty();) append_utf8(next_code_point(rest), text);
    tokens.assign(1, std::move(text));
  }
};

}  // namespace

char32_t byte_to_sign(unsigned char byte) {
  return kAlphabet.sign[byte];
}

int sign_to_byte(char32_t c) {
  return c < kSigns ? kAlphabet.byte[c] : -1;
}

void to_byte_signs(const AlignedChar* begin, const AlignedChar* end, AlignedText& out) {
  std::string utf8;
  for (; begin != end; ++begin) {
    if (begin->c < 0x80) {
      out.push_back({kAlphabet.sign[begin->c], begin->begin, begin->end});
      continue;
    }
    utf8.clear();
    append_utf8(begin->c, utf8);
    for (unsigned char byte : utf8) out.push_back({kAlphabet.sign[byte], begin->begin, begin->end});
  }
}

PreTokenizerPtr make_byte_level(const ByteLevelOptions& options) {
  return std::make_unique<ByteLevel>(options);
}
NormalizerPtr make_byte_level_normalizer() {
  return std::make_unique<ByteLevelNormalizer>();
}
DecoderPtr make_byte_level_decoder() {
  return std::make_unique<ByteLevelDecoder>();
}

}  // namespace tessera::text
