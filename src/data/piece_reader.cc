#include "data/piece_reader.h"

namespace tessera::data {

std::optional<RowPiece> PieceReader::operator()() {
  constexpr std::size_t kRowsTogether = 256;
  RowPiece piece;
  SourceRow row;
  while (piece.rows.size() < kRowsTogether) {
    if (source_ == nullptr) {
      if (next_ == split_.files.size()) break;
      source_ = open_rows(split_, next_++, text_column_);
    }
    if (source_->next(row)) {
      piece.rows.push_back(row);
      piece.keeps_alive = source_;
    } else {
      source_ = nullptr;
      if (!piece.rows.empty()) break;
    }
  }
  if (piece.rows.empty()) return std::nullopt;
  return piece;
}

}  // namespace tessera::data
