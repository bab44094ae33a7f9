#include "estimate/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tessera::estimate {
namespace {

std::string repeated(const char* text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

std::string rule(const std::vector<std::size_t>& widths, const char* left, const char* between, const char* right) {
  std::string out = left;
  for (std::size_t i = 0; i < widths.size(); ++i) (out += i > 0 ? between : "") += repeated("─", widths[i]);
  return out + right + "\n";
}

std::string line(const std::vector<std::size_t>& widths, const std::vector<std::string>& cells) {
  std::string out = "│";
  for (std::size_t i = 0; i < widths.size(); ++i) out += fmt::format("{:^{}}│", cells[i], widths[i]);
  return out + "\n";
}

}  // namespace

std::string framed_table(const std::string& title, const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& text : header) widths.push_back(text.size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::size_t inside = std::accumulate(widths.begin(), widths.end(), widths.size() - 1);
  if (title.size() > inside) {
    widths.back() += title.size() - inside;
    inside = title.size();
  }
  std::string out = rule(widths, "┌", "─", "┐") + line({inside}, {title}) + rule(widths, "├", "┬", "┤") +
                    line(widths, header) + rule(widths, "├", "┼", "┤");
  for (const auto& row : rows) out += line(widths, row);
  return out + rule(widths, "└", "┴", "┘");
}

}  // namespace tessera::estimate
