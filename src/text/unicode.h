#pragma once
// UTF-8, white space and grapheme clusters.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::text {

/// The next code point, from.remove_prefix()ed. A malformed sequence gives U+FFFD for each maximal subpart
/// (Unicode 3.9, as Python's errors="replace"). `from` must not be empty.
char32_t next_code_point(std::string_view& from);

void append_utf8(char32_t c, std::string& out);
std::u32string to_utf32(std::string_view utf8);
int utf8_length(char32_t c);

/// The White_Space property.
bool is_whitespace(char32_t c);
/// True when an extended grapheme cluster ends between the two. `state` starts at 0 and is carried along the text.
bool is_grapheme_break(char32_t before, char32_t after, std::int32_t& state);

}  // namespace tessera::text
