#include "text/unicode.h"

#include <utf8proc.h>

namespace tessera::text {

bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_grapheme_break(char32_t before, char32_t after, std::int32_t& state) {
  if (before < 0x80 && after < 0x80 && before != '\r') {
    state = 0;
    return true;
  }
  return utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before), static_cast<utf8proc_int32_t>(after),
                                          &state);
}

}  // namespace tessera::text
