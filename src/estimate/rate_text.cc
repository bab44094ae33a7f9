#include "estimate/rate_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

struct TextUnit {
  std::string name;
  double value;
};

std::vector<TextUnit> with_prefixes(const std::string& unit, double value) {
  return {{unit, value},
          {"k" + unit, 1e3 * value},
          {"M" + unit, 1e6 * value},
          {"G" + unit, 1e9 * value},
          {"T" + unit, 1e12 * value},
          {"P" + unit, 1e15 * value}};
}

struct RateForm {
  std::vector<TextUnit> units;
  const char* expected;
};

double parse_with(const std::string& text, const std::string& flag, const RateForm& form) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit;
  for (; *end != '\0'; ++end)
    if (*end != ' ') unit += *end;
  for (const auto& known : form.units) {
    const double value = number * known.value;
    if (unit == known.name && std::isfinite(value) && value > 0) return value;
  }
  throw ConfigError(fmt::format("--{} expects {}, found '{}'", flag, form.expected, text), flag);
}

}  // namespace

double parse_byte_rate(const std::string& text, const std::string& flag) {
  auto units = with_prefixes("B/s", 1);
  for (auto& unit : with_prefixes("bit/s", 0.125)) units.push_back(unit);
  for (const auto& [prefix, value] : {std::pair{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}})
    units.push_back({std::string(prefix) + "B/s", value});
  return parse_with(text, flag, {units, "a rate like 25GB/s, 3GiB/s or 100Gbit/s"});
}

double parse_flop_rate(const std::string& text, const std::string& flag) {
  return parse_with(text, flag, {with_prefixes("FLOP/s", 1), "a rate like 1.5TFLOP/s or 224GFLOP/s"});
}

double parse_seconds(const std::string& text, const std::string& flag) {
  return parse_with(text, flag,
                    {{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}, "a time like 5us, 1.5ms or 0.1s"});
}

std::string rate_text(double rate, const std::string& unit) {
  std::string prefix;
  for (const char* next : {"k", "M", "G", "T", "P"}) {
    if (rate < 1000) break;
    rate /= 1000;
    prefix = next;
  }
  return fmt::format("{:.3g} {}{}", rate, prefix, unit);
}

}  // namespace tessera::estimate
