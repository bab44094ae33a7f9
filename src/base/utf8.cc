#include "base/utf8.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

}  // namespace

char32_t next_code_point(std::string_view& from) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(from[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    from.remove_prefix(1);
    return first;
  }
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) {
    from.remove_prefix(1);
    return kReplacement;
  }
  char32_t c = first & (0x7F >> length);
  for (std::size_t i = 1; i < length; ++i) {
    // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1 && first == 0xE0) low = 0xA0;
    if (i == 1 && first == 0xED) high = 0x9F;
    if (i == 1 && first == 0xF0) low = 0x90;
    if (i == 1 && first == 0xF4) high = 0x8F;
    if (i >= from.size() || byte(i) < low || byte(i) > high) {
      from.remove_prefix(i);
      return kReplacement;
    }
    c = (c << 6) | (byte(i) & 0x3F);
  }
  from.remove_prefix(length);
  return c;
}

std::optional<std::size_t> find_malformed_utf8(std::string_view text) {
  constexpr std::string_view kWritten = "\xEF\xBF\xBD";  // U+FFFD itself
  for (auto rest = text; !rest.empty();) {
    const auto here = rest;
    if (next_code_point(rest) == kReplacement && !here.starts_with(kWritten)) return text.size() - here.size();
  }
  return std::nullopt;
}

void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const int length = utf8_length(c);
  out += static_cast<char>((0xF00 >> length) | (c >> (6 * (length - 1))));
  for (int i = length - 2; i >= 0; --i) out += static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F));
}

std::u32string to_utf32(std::string_view utf8) {
  std::u32string out;
  out.reserve(utf8.size());
  while (!utf8.empty()) {
    const auto ascii =
        std::find_if(utf8.begin(), utf8.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
    out.append(utf8.begin(), ascii);
    utf8.remove_prefix(static_cast<std::size_t>(ascii - utf8.begin()));
    if (!utf8.empty()) out += next_code_point(utf8);
  }
  return out;
}

int utf8_length(char32_t c) {
  return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

std::int64_t count_points(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return !is_continuation(c); });
}

}  // namespace tessera
