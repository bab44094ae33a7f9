#include "report/markup.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "base/grouped.h"

namespace tessera::report {

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t';
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += is_control ? ' ' : c;  // XML has no way to write them
  }
  return out;
}

std::string short_number(double value) {
  if (std::isnan(value)) return "not a number";
  if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
  const double size = std::abs(value);
  if (size >= 10'000 && size < 1e9) return grouped(static_cast<std::int64_t>(std::llround(value)));
  std::string text = fmt::format("{:.4g}", value);
  for (const char* zeros : {"e-0", "e+0"})  // 1e-05 -> 1e-5
    if (const auto at = text.find(zeros); at != std::string::npos) text.erase(at + 2, 1);
  return text;
}

}  // namespace tessera::report
