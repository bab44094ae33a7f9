#include "text/character_classes.h"
#include "text/pre_tokenizer.h"

namespace tessera::text {
namespace {

class UnicodeScripts final : public PreTokenizer {
 public:
  void cut(Pieces& pieces) const override {
    std::vector<Piece> out;
    for (const auto& piece : pieces.list) {
      if (piece.token >= 0)
        out.push_back(piece);
      else
        cut_piece(pieces.text, piece, out);
    }
    pieces.list.swap(out);
  }

 private:
  // Code points without a script, and spaces, go with the piece before them.
  static void cut_piece(const AlignedText& text, const Piece& piece, std::vector<Piece>& out) {
    int last = 0;
    for (auto i = piece.begin; i < piece.end; ++i) {
      const int script = unicode_script(text[i].c);
      if (script != 0 && script != last) {
        out.push_back({i, i + 1, -1});
        last = script;
      } else if (last != 0) {
        out.back().end = i + 1;
      }
    }
  }
};

}  // namespace

PreTokenizerPtr make_unicode_scripts() {
  return std::make_unique<UnicodeScripts>();
}

}  // namespace tessera::text
