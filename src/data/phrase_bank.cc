#include <fmt/format.h>

#include "data/row_table.h"
#include "data/text_rows.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

std::string_view strip(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r\n";
  const auto begin = s.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace

std::vector<TextPair> read_phrase_bank(const std::string& file, std::string_view text) {
  std::vector<TextPair> rows;
  TextLines lines(file, text);
  for (std::string_view line; lines.next(line);) {
    const auto number = lines.number();
    line = strip(line);
    if (line.empty()) continue;
    const auto at = line.rfind('@');
    if (at == std::string_view::npos)
      throw DataError(
          fmt::format("{}:{}: expected \"sentence@label\", found no '@' in \"{}\"", file, number, line.substr(0, 60)),
          file, number);
    const auto source = strip(line.substr(0, at)), target = strip(line.substr(at + 1));
    if (source.empty() || target.empty())
      throw DataError(fmt::format("{}:{}: expected \"sentence@label\", found an empty {}", file, number,
                                  source.empty() ? "sentence" : "label"),
                      file, number);
    rows.push_back({std::string(source), std::string(target), file, number});
  }
  return rows;
}

}  // namespace tessera::data
