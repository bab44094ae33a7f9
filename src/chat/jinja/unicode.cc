#include "chat/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "chat/jinja/budget.h"

namespace tessera::chat {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Characters whose upper or title case is more than one (SpecialCasing.txt, without conditions); the rest of that file
// are Greek letters with iota and combining forms, which follow the single mappings here.
struct Special {
  char32_t from;
  std::u32string_view upper, title;
};
constexpr std::array kSpecial{
    Special{0xdf, U"SS", U"Ss"},
    Special{0x149, U"\u02bcN", U"\u02bcN"},
    Special{0x1f0, U"J\u030c", U"J\u030c"},
    Special{0x390, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
    Special{0x3b0, U"\u03a5\u0308\u0301", U"\u03a5\u0308\u0301"},
    Special{0x587, U"\u0535\u0552", U"\u0535\u0582"},
    Special{0x1e96, U"H\u0331", U"H\u0331"},
    Special{0x1e97, U"T\u0308", U"T\u0308"},
    Special{0x1e98, U"W\u030a", U"W\u030a"},
    Special{0x1e99, U"Y\u030a", U"Y\u030a"},
    Special{0x1e9a, U"A\u02be", U"A\u02be"},
    Special{0xfb00, U"FF", U"Ff"},
    Special{0xfb01, U"FI", U"Fi"},
    Special{0xfb02, U"FL", U"Fl"},
    Special{0xfb03, U"FFI", U"Ffi"},
    Special{0xfb04, U"FFL", U"Ffl"},
    Special{0xfb05, U"ST", U"St"},
    Special{0xfb06, U"ST", U"St"},
};

const Special* special(char32_t c) {
  const auto it = std::find_if(kSpecial.begin(), kSpecial.end(), [&](const Special& s) { return s.from == c; });
  return it == kSpecial.end() ? nullptr : &*it;
}

void append_upper(std::u32string& out, char32_t c) {
  if (const auto* s = c < 0x80 ? nullptr : special(c))
    out += s->upper;
  else
    out += static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

void append_title(std::u32string& out, char32_t c) {
  if (const auto* s = c < 0x80 ? nullptr : special(c))
    out += s->title;
  else
    out += static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || is_title(c);
}

bool is_case_ignorable(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' ||
         c == 0xb7 || c == 0x2019;
}

// A sigma that ends a word is written differently.
bool is_final_sigma(std::u32string_view text, std::size_t at) {
  std::size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  std::size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::u32string& out, std::u32string_view text, std::size_t at) {
  const char32_t c = text[at];
  if (c == 0x130)
    out += U"i\u0307";
  else if (c == 0x3a3)
    out += is_final_sigma(text, at) ? 0x3c2 : 0x3c3;
  else
    out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

}  // namespace

// What each code point costs that is read or written, and one whose properties are looked up, in the budget's units.
constexpr std::int64_t kPointWork = 2, kCaseWork = 20;

namespace {

void charge_case(std::u32string_view text) {
  const auto size = static_cast<std::int64_t>(text.size());
  spend(kCaseWork * size);
  require_memory(2 * static_cast<std::int64_t>(sizeof(char32_t)) * size);
}

}  // namespace

std::u32string to_points(std::string_view utf8) {
  spend(kPointWork * static_cast<std::int64_t>(utf8.size()));
  require_memory(static_cast<std::int64_t>(sizeof(char32_t) * utf8.size()));
  return to_utf32(utf8);
}

std::string to_utf8(std::u32string_view points) {
  spend(kPointWork * static_cast<std::int64_t>(points.size()));
  require_memory(static_cast<std::int64_t>(points.size()));
  std::string out;
  out.reserve(points.size());
  for (char32_t c : points) {
    if (c < 0x80)
      out += static_cast<char>(c);
    else
      append_utf8(c, out);
  }
  return out;
}

bool is_ascii(std::string_view text) {
  // In words: this is asked for every text that is made.
  std::uint64_t high = 0, word = 0;
  for (; text.size() >= sizeof(word); text.remove_prefix(sizeof(word))) {
    std::memcpy(&word, text.data(), sizeof(word));
    high |= word;
  }
  for (char c : text) high |= static_cast<std::uint64_t>(static_cast<unsigned char>(c));
  return (high & 0x8080808080808080U) == 0;
}

std::string valid_utf8(std::string_view text) {
  return is_ascii(text) ? std::string(text) : to_utf8(to_points(text));
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
  const auto kind = category(c);
  return c == 0x85 || kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

bool is_line_break(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c < 0x80) return c >= 32 && c < 127;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_alpha(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
}

bool is_numeric(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216f) || (c >= 0x24b6 && c <= 0x24cf);
}

bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba || (c >= 0x2170 && c <= 0x217f) ||
         (c >= 0x24d0 && c <= 0x24e9);
}

bool is_title(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_identifier_start(char32_t c) {
  return c == '_' || is_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL;
}

bool is_identifier_part(char32_t c) {
  if (is_identifier_start(c)) return true;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_PC;
}

std::u32string upper(std::u32string_view text) {
  charge_case(text);
  std::u32string out;
  for (char32_t c : text) append_upper(out, c);
  return out;
}

std::u32string lower(std::u32string_view text) {
  charge_case(text);
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) append_lower(out, text, i);
  return out;
}

std::u32string capitalize(std::u32string_view text) {
  charge_case(text);
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == 0)
      append_title(out, text[i]);
    else
      append_lower(out, text, i);
  }
  return out;
}

std::u32string title(std::u32string_view text) {
  charge_case(text);
  std::u32string out;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (inside)
      append_lower(out, text, i);
    else
      append_title(out, text[i]);
    inside = is_cased(text[i]);
  }
  return out;
}

std::u32string swapcase(std::u32string_view text) {
  charge_case(text);
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_upper(text[i]))
      append_lower(out, text, i);
    else if (is_lower(text[i]))
      append_upper(out, text[i]);
    else
      out += text[i];
  }
  return out;
}

std::u32string casefold(std::u32string_view text) {
  charge_case(text);
  std::u32string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (const auto* s = special(text[i]))
      out += lower(s->upper);
    else
      out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(text[i])));
  }
  return out;
}

}  // namespace tessera::chat
