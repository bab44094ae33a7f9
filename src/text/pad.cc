#include "text/pad.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::text {

PaddedRows pad(const std::vector<std::vector<std::int32_t>>& rows, const PadOptions& options) {
  auto length = static_cast<std::size_t>(options.length);
  for (const auto& row : rows) length = std::max(length, row.size());
  const auto multiple = static_cast<std::size_t>(std::max<std::int64_t>(options.multiple_of, 1));
  length = (length + multiple - 1) / multiple * multiple;
  PaddedRows out;
  for (const auto& row : rows) {
    std::vector<std::int32_t> ids(length, options.pad_id), mask(length, 0);
    const auto at = static_cast<std::ptrdiff_t>(options.side == Side::kLeft ? length - row.size() : 0);
    std::copy(row.begin(), row.end(), ids.begin() + at);
    std::fill_n(mask.begin() + at, row.size(), 1);
    out.ids.push_back(std::move(ids));
    out.mask.push_back(std::move(mask));
  }
  return out;
}

std::string clean_up_tokenization_spaces(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kRules{{{" .", "."},
                                                                                  {" ?", "?"},
                                                                                  {" !", "!"},
                                                                                  {" ,", ","},
                                                                                  {" ' ", "'"},
                                                                                  {" n't", "n't"},
                                                                                  {" 'm", "'m"},
                                                                                  {" 's", "'s"},
                                                                                  {" 've", "'ve"},
                                                                                  {" 're", "'re"}}};
  for (const auto& [from, to] : kRules)
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  return text;
}

}  // namespace tessera::text
