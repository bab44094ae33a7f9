#pragma once
// tokenizer.json has expressions of Oniguruma's Ruby syntax. Most mean the same in PCRE2; what does not is rewritten.
#include <string>

namespace tessera::text {

/// How \s is written: PCRE2's own counts U+180E as white space, Oniguruma does not, and its class is slower.
enum class SpaceClass { kOwn, kExact };

/// \w \W \b \B \h \H and, with kExact, \s \S; \u00AB; POSIX classes; names of scripts and long names of categories;
/// classes within classes, their intersections ([a-z&&[^aeiou]]) and complements ([^\W\d_]).
std::string to_pcre(const std::string& pattern, SpaceClass space);

}  // namespace tessera::text
