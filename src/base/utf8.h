#pragma once
// UTF-8: the one decoder and the one encoder.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// The next code point, from.remove_prefix()ed. A malformed sequence gives U+FFFD for each maximal subpart
/// (Unicode 3.9, as Python's errors="replace"). `from` must not be empty.
char32_t next_code_point(std::string_view& from);

/// Where the first malformed sequence begins, in bytes.
std::optional<std::size_t> find_malformed_utf8(std::string_view text);

void append_utf8(char32_t c, std::string& out);
std::u32string to_utf32(std::string_view utf8);
int utf8_length(char32_t c);
/// Whether the byte goes on with a code point that begins before it.
constexpr bool is_continuation(char byte) {
  return (byte & 0xC0) == 0x80;
}
std::int64_t count_points(std::string_view utf8);

}  // namespace tessera
