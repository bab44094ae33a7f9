#pragma once
// Rows of ids -> rows of one length.
#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tessera::text {

struct PadOptions {
  std::int32_t pad_id = 0;
  std::int64_t length = 0;       // at least this; 0: the longest row
  std::int64_t multiple_of = 1;  // the length is rounded up to it
  Side side = Side::kRight;
};

struct PaddedRows {
  std::vector<std::vector<std::int32_t>> ids, mask;  // mask: 1 on tokens, 0 on padding
};

PaddedRows pad(const std::vector<std::vector<std::int32_t>>& rows, const PadOptions& options);

/// English punctuation closed up ("don 't stop ." -> "don't stop."), as transformers' clean_up_tokenization_spaces.
std::string clean_up_tokenization_spaces(std::string text);

}  // namespace tessera::text
