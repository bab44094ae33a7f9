#pragma once
// What pairs of texts (text_pair.h) are made of.
#include <string>
#include <string_view>
#include <vector>

#include "data/text_pair.h"

namespace tessera::data {

/// `text` is the file's content, already UTF-8.
std::vector<TextPair> read_phrase_bank(const std::string& file, std::string_view text);

/// The names of the columns of the text, the label and the second text (empty: there is none) among `columns`;
/// DataError lists them when one is missing.
struct ColumnNames {
  std::string text, label, second;
};
ColumnNames choose_columns(const std::string& file, std::int64_t line, const std::vector<std::string>& columns,
                           const ReadOptions& options);

/// A label as it is in the file -> the text to learn.
std::string label_text(const std::string& file, std::int64_t line, const std::string& label, bool is_integer,
                       const ReadOptions& options);

}  // namespace tessera::data
