// The pieces of strings that methods and filters share.
#include <algorithm>

#include "chat/jinja/methods.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"
#include "chat/jinja/text_search.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {

std::vector<Value> split_space(const std::u32string& text, std::int64_t limit) {
  std::vector<Value> out;
  std::size_t at = 0;
  const auto skip = [&] {
    while (at < text.size() && is_space(text[at])) ++at;
  };
  for (skip(); at < text.size(); skip()) {
    std::size_t end = at;
    const bool rest = limit >= 0 && static_cast<std::int64_t>(out.size()) >= limit;  // with the blanks at its end
    while (end < text.size() && (rest || !is_space(text[end]))) ++end;
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

bool take_line(std::string_view& rest, std::string_view& line, std::string_view& whole) {
  if (rest.empty()) return false;
  std::size_t end = 0, after = rest.size();
  for (; end < rest.size(); ++end) {
    const auto byte = static_cast<unsigned char>(rest[end]);
    const std::string_view here = rest.substr(end, 3);
    // U+0085, U+2028, U+2029
    const std::size_t wide = here.starts_with("\xc2\x85")                       ? 2
                             : here == "\xe2\x80\xa8" || here == "\xe2\x80\xa9" ? 3
                                                                                : 0;
    if (!is_line_break(byte < 0x80 ? byte : 0U) && wide == 0) continue;
    after = end + (here.starts_with("\r\n") ? 2 : std::max<std::size_t>(wide, 1));
    break;
  }
  spend(2 * static_cast<std::int64_t>(after));
  line = rest.substr(0, end);
  whole = rest.substr(0, after);
  rest.remove_prefix(after);
  return true;
}

std::string strip_text(std::string_view text, const Value& set, bool left, bool right) {
  require_defined(set);
  if (!set.is_none() && !set.is_text()) type_error("strip arg must be None or str");
  const auto points = to_points(text);
  const std::u32string chosen = set.is_none() ? std::u32string() : to_points(set.text());
  const auto unwanted = [&](char32_t c) {
    if (set.is_none()) return is_space(c);
    spend(static_cast<std::int64_t>(chosen.size()) / 4 + 1);
    return chosen.find(c) != std::u32string::npos;
  };
  std::size_t begin = 0, end = points.size();
  while (left && begin < end && unwanted(points[begin])) ++begin;
  while (right && end > begin && unwanted(points[end - 1])) --end;
  return to_utf8(std::u32string_view(points).substr(begin, end - begin));
}

std::string center_text(std::string_view text, std::int64_t width, char32_t fill) {
  const std::int64_t margin = width - count_points(text);
  if (margin <= 0) return std::string(text);
  // CPython puts the odd blank on the left where the width is odd.
  const std::int64_t left = margin / 2 + (margin & width & 1);
  const std::string blank = to_utf8(std::u32string(1, fill));
  TextBuilder out;
  out.repeat(blank, left);
  out += text;
  out.repeat(blank, margin - left);
  return out.take();
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit) {
  TextBuilder out;
  std::int64_t done = 0;
  std::size_t at = 0;
  const auto more = [&] { return limit < 0 || done < limit; };
  if (from.empty()) {
    // Between all characters, as Python does.
    for (; at < text.size(); ++done) {
      if (more()) out += to;
      do out += text[at++];
      while (at < text.size() && is_continuation(text[at]));
    }
    if (more()) out += to;
    return out.take();
  }
  for (auto found = find_first(text, from); found != std::string_view::npos && more();
       found = find_first(text, from, at), ++done) {
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  out += text.substr(at);
  return out.take();
}

bool is_cased_as(std::string_view text, bool (*wanted)(char32_t), bool (*unwanted)(char32_t)) {
  spend(kPropertyWork * static_cast<std::int64_t>(text.size()));
  bool any = false;
  for (char32_t c : to_points(text)) {
    if (unwanted(c) || is_title(c)) return false;
    any = any || wanted(c);
  }
  return any;
}

}  // namespace tessera::chat
