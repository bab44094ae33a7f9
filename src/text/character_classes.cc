#include "text/character_classes.h"

#include <algorithm>
#include <vector>

#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr char32_t kLast = 0x10FFFF;
constexpr char32_t kUnassigned[] = {0, 0, 0x378, 0xFDD0, 0x1FFFE};  // by length in UTF-8

// The run that holds `c`, or null.
template <class Run>
const Run* find_run(std::span<const Run> runs, char32_t c) {
  const auto it =
      std::upper_bound(runs.begin(), runs.end(), c, [](char32_t value, const Run& run) { return value < run.first; });
  return it == runs.begin() || (it - 1)->last < c ? nullptr : &*(it - 1);
}

std::vector<std::uint8_t> expand() {
  std::vector<std::uint8_t> out(kLast + 1);
  for (std::size_t i = 0; i < kClassRuns.size(); ++i) {
    const auto end = i + 1 < kClassRuns.size() ? kClassRuns[i + 1] >> 8 : kLast + 1;
    std::fill(out.begin() + (kClassRuns[i] >> 8), out.begin() + end, static_cast<std::uint8_t>(kClassRuns[i]));
  }
  return out;
}

}  // namespace

const std::uint8_t* class_table() {
  static const auto table = expand();
  return table.data();
}

char32_t to_lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  const auto* run = find_run(kLowerRuns, c);
  if (!run || (c - run->first) % static_cast<char32_t>(run->step) != 0) return c;
  return c + static_cast<char32_t>(run->distance);
}

int unicode_script(char32_t c) {
  const auto it = std::upper_bound(kScriptRuns.begin(), kScriptRuns.end(), c << 8 | 0xFF);
  return it == kScriptRuns.begin() ? 0 : static_cast<int>(*(it - 1) & 0xFF);
}

char32_t stand_in(char32_t c) {
  const auto* run = find_run(kStandIns, c);
  return run ? run->old : kUnassigned[utf8_length(c)];
}

}  // namespace tessera::text
