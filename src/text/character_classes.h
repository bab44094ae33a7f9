#pragma once
// What the tokenizers package's stages hold code points for (unicode_tables.h), each in one step.
#include <cstdint>

#include "text/unicode_tables.h"

namespace tessera::text {

/// A byte of ClassFlag for every code point.
const std::uint8_t* class_table();

inline bool has_class(char32_t c, ClassFlag flag) {
  return (class_table()[c] & flag) != 0;
}

/// Delimiters of Punctuation and BertPreTokenizer.
inline bool is_punctuation(char32_t c) {
  return has_class(c, kPunctuation);
}
/// Delimiters of Digits.
inline bool is_number(char32_t c) {
  return has_class(c, kNumber);
}
/// Part of a word for Whitespace and for added tokens that are single words.
inline bool is_word(char32_t c) {
  return has_class(c, kWord);
}

/// But for U+0130, whose lower case is two code points.
char32_t to_lower(char32_t c);

/// 0: none.
int unicode_script(char32_t c);

/// A code point as long in UTF-8 that PCRE2's expressions treat as the package's treat `c`, which has kNewerThanPcre.
char32_t stand_in(char32_t c);

}  // namespace tessera::text
