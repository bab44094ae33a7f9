#include "text/aligned_text.h"

#include <algorithm>

#include "text/unicode.h"

namespace tessera::text {

AlignedText align(std::string_view utf8) {
  AlignedText out;
  out.reserve(utf8.size() + utf8.size() / 8);
  for (std::int32_t i = 0; !utf8.empty(); ++i) out.push_back({next_code_point(utf8), i, i + 1});
  return out;
}

std::string to_utf8(const AlignedChar* begin, const AlignedChar* end) {
  std::string out;
  for (; begin != end; ++begin) append_utf8(begin->c, out);
  return out;
}

void rewrite(const AlignedChar* from, const AlignedChar* to, std::int32_t skip, const std::vector<Rewrite>& rewrites,
             std::int32_t origin, AlignedText& out) {
  const std::int64_t count = to - from;
  std::int64_t at = skip;
  for (const auto& [c, change] : rewrites) {
    const auto source = change > 0 ? at - 1 : at;
    if (source < 0)
      out.push_back({c, origin, origin});
    else
      out.push_back({c, from[std::min(source, count - 1)].begin, from[std::min(source, count - 1)].end});
    if (change <= 0) at += 1 - change;
  }
}

void replace_run(std::size_t old_count, const std::u32string& now, std::vector<Rewrite>& rewrites) {
  for (std::size_t i = 0; i < now.size(); ++i) rewrites.push_back({now[i], i < old_count ? 0 : 1});
  // What vanishes is charged to the last code point that is there, which may be one before this run.
  if (now.size() < old_count && !rewrites.empty())
    rewrites.back().change -= static_cast<std::int32_t>(old_count - now.size());
}

}  // namespace tessera::text
