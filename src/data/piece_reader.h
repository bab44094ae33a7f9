#pragma once
// The rows of a split in the order of its files, some at a time.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/mixture.h"
#include "data/row_source.h"

namespace tessera::data {

/// Rows of one file.
struct RowPiece {
  std::vector<SourceRow> rows;
  std::shared_ptr<RowSource> keeps_alive;  // the views lie in its file
};

class PieceReader {
 public:
  PieceReader(const Split& split, std::string text_column) : split_(split), text_column_(std::move(text_column)) {}
  /// The next rows, at least one; nothing: the end.
  std::optional<RowPiece> operator()();

 private:
  const Split& split_;
  std::string text_column_;
  std::shared_ptr<RowSource> source_;
  std::size_t next_ = 0;
};

}  // namespace tessera::data
