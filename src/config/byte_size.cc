#include "config/byte_size.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera::config {
namespace {

struct SizeUnit {
  const char* name;
  double bytes;
};
constexpr SizeUnit kSizeUnits[] = {{"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
                                   {"TB", 1e12}, {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
constexpr double kLargest = 0x1p62;

}  // namespace

std::int64_t parse_byte_size(const std::string& text, const std::string& flag) {
  char* end = nullptr;
  const bool begins_well = !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0 || text[0] == '.');
  const double number = begins_well ? std::strtod(text.c_str(), &end) : -1;
  std::string unit;
  for (; end && *end; ++end)
    if (*end != ' ') unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*end)));
  for (const auto& known : kSizeUnits) {
    const double bytes = number * known.bytes;
    if (unit == known.name && bytes >= 1 && bytes < kLargest) return static_cast<std::int64_t>(bytes);
  }
  throw ConfigError(
      fmt::format("--{} expects a size like 20GiB, 24GB or 512MiB (or a number of bytes), found '{}'", flag, text),
      flag);
}

}  // namespace tessera::config
