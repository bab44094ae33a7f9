#include "chat/jinja/string_escapes.h"

#include <fmt/format.h>

#include "chat/jinja/template_error.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char low = static_cast<char>(c | 32);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

char32_t read_hex(std::string_view text, std::size_t& at, int count, char letter) {
  std::uint64_t value = 0;
  for (int i = 0; i < count; ++i, ++at) {
    const int digit = at < text.size() ? hex_digit(text[at]) : -1;
    if (digit < 0) fail(ErrorKind::kSyntax, fmt::format("truncated \\{}{} escape", letter, std::string(count, 'X')));
    value = value * 16 + static_cast<std::uint64_t>(digit);
  }
  if (value > 0x10ffff) fail(ErrorKind::kSyntax, "illegal Unicode character");
  return static_cast<char32_t>(value);
}

// A pair of surrogates is one character; a single one cannot be written as UTF-8.
char32_t read_code_unit(std::string_view text, std::size_t& at) {
  const char32_t high = read_hex(text, at, 4, 'u');
  if (high < 0xd800 || high > 0xdfff) return high;
  if (high < 0xdc00 && text.substr(at, 2) == "\\u") {
    std::size_t next = at + 2;
    const char32_t low = read_hex(text, next, 4, 'u');
    if (low >= 0xdc00 && low <= 0xdfff) {
      at = next;
      return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
  }
  return 0xfffd;
}

}  // namespace

std::string unescape(std::string_view text) {
  static constexpr std::string_view kLetters = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '\\' || at + 1 >= text.size()) {
      out += text[at++];
      continue;
    }
    const char c = text[at + 1];
    at += 2;
    if (const auto known = kLetters.find(c); known != std::string_view::npos) {
      out += kValues[known];
    } else if (c == '\n') {
      continue;
    } else if (c == 'x') {
      append_utf8(read_hex(text, at, 2, 'x'), out);
    } else if (c == 'u') {
      append_utf8(read_code_unit(text, at), out);
    } else if (c == 'U') {
      append_utf8(read_hex(text, at, 8, 'U'), out);
    } else if (c >= '0' && c <= '7') {
      char32_t value = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++i)
        value = value * 8 + static_cast<char32_t>(text[at++] - '0');
      append_utf8(value, out);
    } else if (c == 'N') {
      fail(ErrorKind::kSyntax, "names of characters (\\N) are not supported; write \\u and the code");
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace tessera::chat
