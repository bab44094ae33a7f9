#include "chat/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "chat/jinja/budget.h"
#include "chat/jinja/case_tables.h"

namespace tessera::chat {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool has(char32_t c, Property property, bool by_category) {
  const auto excepts = [&](const PropertyException& e) {
    return e.property == property && e.first <= c && c <= e.last;
  };
  return by_category != std::any_of(std::begin(kPropertyExceptions), std::end(kPropertyExceptions), excepts);
}

const SpecialCase* special(char32_t c) {
  const auto* end = std::end(kSpecialCases);
  const auto* it = std::lower_bound(std::begin(kSpecialCases), end, c,
                                    [](const SpecialCase& one, char32_t wanted) { return one.from < wanted; });
  return it == end || it->from != c ? nullptr : it;
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
  const bool by_category = kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME ||
                           kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_SK;
  return has(c, Property::kCaseIgnorable, by_category);
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
  return has(c, Property::kDigit, is_decimal(c));
}

bool is_numeric(char32_t c) {
  const auto kind = category(c);
  return has(c, Property::kNumeric,
             kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO);
}

bool is_upper(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  return has(c, Property::kUpper, category(c) == UTF8PROC_CATEGORY_LU);
}

bool is_lower(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  return has(c, Property::kLower, category(c) == UTF8PROC_CATEGORY_LL);
}

bool is_title(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
}

namespace {

bool is_ascii_letter(char32_t c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool begins_by_category(char32_t c) {
  return is_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL;
}

}  // namespace

bool is_identifier_start(char32_t c) {
  if (c < 0x80) return c == '_' || is_ascii_letter(c);
  return has(c, Property::kIdentifierStart, begins_by_category(c));
}

bool is_identifier_part(char32_t c) {
  if (c < 0x80) return c == '_' || is_ascii_letter(c) || (c >= '0' && c <= '9');
  const auto kind = category(c);
  return has(c, Property::kIdentifierPart,
             begins_by_category(c) || kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_MN ||
                 kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_PC);
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
  for (const char32_t c : text) {
    std::array<utf8proc_int32_t, 4> folded{};  // at most three
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded.data(),
                                static_cast<utf8proc_ssize_t>(folded.size()), UTF8PROC_CASEFOLD, nullptr);
    for (utf8proc_ssize_t i = 0; i < count; ++i) out += static_cast<char32_t>(folded[static_cast<std::size_t>(i)]);
  }
  return out;
}

}  // namespace tessera::chat
