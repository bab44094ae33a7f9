#pragma once
// GPT-2's alphabet: every byte has a printable code point, so that a vocabulary of texts can hold any bytes.
#include <string>
#include <string_view>

#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace tessera::text {

char32_t byte_to_sign(unsigned char byte);
/// -1 where `c` stands for no byte.
int sign_to_byte(char32_t c);

/// Every byte of the UTF-8 text becomes its sign, aligned with the code point that it belongs to.
void to_byte_signs(const AlignedChar* begin, const AlignedChar* end, AlignedText& out);

/// How GPT-2 cuts text into words.
extern const char* const kGpt2Pattern;

struct ByteLevelOptions {
  bool add_prefix_space = true;  // a piece that starts with no space gets one
  bool use_regex = true;         // cuts by kGpt2Pattern
};
PreTokenizerPtr make_byte_level(const ByteLevelOptions& options);
NormalizerPtr make_byte_level_normalizer();
/// Signs -> bytes -> text; a token with another sign in it stands for itself. Malformed UTF-8 becomes U+FFFD.
DecoderPtr make_byte_level_decoder();

}  // namespace tessera::text
