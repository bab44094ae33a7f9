#pragma once
// tokenizer.json has expressions of Oniguruma's Ruby syntax. Most mean the same in PCRE2; what does not is rewritten.
#include <string>
#include <utility>
#include <vector>

namespace tessera::text {

struct PcrePattern {
  std::string text;
  std::vector<std::pair<char32_t, char32_t>> named;  // code points that the expression lists itself: first, last
};

/// Rewritten are \w \W \b \B \h \H \v; \u00AB; {,3}, and {2}+ and {2}? which repeat {2}; (?m); (?i) before
/// alternatives; POSIX classes; names of scripts and long names of categories; classes within classes, their
/// intersections ([a-z&&[^aeiou]]) and complements ([^\W\d_]); letters that are one when case does not matter ((?i:st)
/// matches U+FB05).
PcrePattern to_pcre(const std::string& pattern);

}  // namespace tessera::text
