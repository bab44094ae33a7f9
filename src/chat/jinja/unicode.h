#pragma once
// Code points, and what Python's str methods know about them (utf8proc's tables).
#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace tessera::chat {

constexpr std::int64_t kPropertyWork = 10;  // of looking up what a code point is (budget.h)

/// Malformed bytes become U+FFFD.
std::u32string to_points(std::string_view utf8);
std::string to_utf8(std::u32string_view points);
bool is_ascii(std::string_view text);
/// Malformed bytes replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

bool is_space(char32_t c);       // str.isspace
bool is_line_break(char32_t c);  // where str.splitlines splits
bool is_printable(char32_t c);   // what repr() shows as it is
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_identifier_start(char32_t c);
bool is_identifier_part(char32_t c);

std::u32string upper(std::u32string_view text);
std::u32string lower(std::u32string_view text);
std::u32string capitalize(std::u32string_view text);
std::u32string title(std::u32string_view text);
std::u32string swapcase(std::u32string_view text);
std::u32string casefold(std::u32string_view text);

}  // namespace tessera::chat
