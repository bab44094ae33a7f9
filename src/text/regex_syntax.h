#pragma once
// tokenizer.json has expressions of Oniguruma's Ruby syntax. Most mean the same in PCRE2; what does not is rewritten.
#include <string>

namespace tessera::text {

/// How \s is written: PCRE2's own counts U+180E as white space, Oniguruma does not, and its class is slower.
enum class SpaceClass { kOwn, kExact };

/// \w and \W (letters, marks, numbers, connectors), \h and \H (hexadecimal digits), and, with kExact, \s and \S. Inside
/// brackets the negated ones stay as they are.
std::string to_pcre(const std::string& pattern, SpaceClass space);

}  // namespace tessera::text
