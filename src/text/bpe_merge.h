#pragma once
// The core of byte pair encoding: while there is a merge for two neighbours, the one of lowest rank happens, of equal
// ones the leftmost (Sennrich 2016).
#include <cstdint>
#include <vector>

#include "text/merge_table.h"

namespace tessera::text {

struct Symbol {
  std::int32_t id = 0;
  std::uint32_t length = 0;  // bytes of the piece
};

/// Merges in place. Time is n log n for long pieces.
void merge_symbols(const MergeTable& merges, std::vector<Symbol>& symbols);

}  // namespace tessera::text
