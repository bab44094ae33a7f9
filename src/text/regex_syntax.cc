#include "text/regex_syntax.h"

namespace tessera::text {
namespace {

// The members of the class, as written between brackets; "": the escape means the same in PCRE2.
const char* members(char escape, SpaceClass space) {
  if (escape == 'w' || escape == 'W') return R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\xB2\xB3\xB9\xBC-\xBE)";
  if (escape == 'h' || escape == 'H') return "0-9a-fA-F";
  if ((escape == 's' || escape == 'S') && space == SpaceClass::kExact) return R"(\t-\r \x{85}\p{Z})";
  return "";
}

bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}

}  // namespace

std::string to_pcre(const std::string& pattern, SpaceClass space) {
  std::string out;
  int depth = 0;  // of brackets
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') ++depth;
      if (c == ']' && depth > 0) --depth;
      out += c;
      continue;
    }
    const char escape = pattern[++i];
    const std::string inner = members(escape, space);
    if (inner.empty() || (depth > 0 && is_upper(escape)))
      (out += '\\') += escape;
    else if (depth > 0)
      out += inner;
    else
      out.append(is_upper(escape) ? "[^" : "[").append(inner) += ']';
  }
  return out;
}

}  // namespace tessera::text
