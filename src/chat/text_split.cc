// The pieces of strings that methods and filters share.
#include <algorithm>

#include "chat/methods.h"
#include "chat/repr.h"
#include "chat/template_error.h"
#include "chat/unicode.h"

namespace tessera::chat {

std::vector<Value> split_space(const std::u32string& text, std::int64_t limit) {
  std::vector<Value> out;
  std::size_t at = 0;
  const auto skip = [&] {
    while (at < text.size() && is_space(text[at])) ++at;
  };
  for (skip(); at < text.size(); skip()) {
    std::size_t end = at;
    if (limit >= 0 && static_cast<std::int64_t>(out.size()) >= limit) {
      end = text.size();
      while (end > at && is_space(text[end - 1])) --end;
      out.emplace_back(text.substr(at, end - at));
      break;
    }
    while (end < text.size() && !is_space(text[end])) ++end;
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  const auto points = to_points(text);
  for (std::size_t at = 0; at < points.size();) {
    std::size_t end = at;
    while (end < points.size() && !is_line_break(points[end])) ++end;
    std::size_t after = std::min(end + 1, points.size());
    if (end + 1 < points.size() && points[end] == '\r' && points[end + 1] == '\n') ++after;
    out.push_back(to_utf8(std::u32string_view(points).substr(at, (keep_ends ? after : end) - at)));
    at = after;
  }
  return out;
}

std::string strip_text(std::string_view text, const Value& set, bool left, bool right) {
  require_defined(set);
  if (!set.is_none() && !set.is_text()) type_error("strip arg must be None or str");
  const auto points = to_points(text);
  const std::u32string chosen = set.is_none() ? std::u32string() : to_points(set.text());
  const auto unwanted = [&](char32_t c) {
    return set.is_none() ? is_space(c) : chosen.find(c) != std::u32string::npos;
  };
  std::size_t begin = 0, end = points.size();
  while (left && begin < end && unwanted(points[begin])) ++begin;
  while (right && end > begin && unwanted(points[end - 1])) --end;
  return to_utf8(std::u32string_view(points).substr(begin, end - begin));
}

std::string center_text(std::string_view text, std::int64_t width, char32_t fill) {
  const std::int64_t size = count_points(text), margin = width - size;
  if (margin <= 0) return std::string(text);
  if (margin > 1 << 24) fail(ErrorKind::kLimit, "a text is centred in too wide a field");
  // CPython puts the odd blank on the left where the width is odd.
  const std::int64_t left = margin / 2 + (margin & width & 1);
  const auto blanks = [&](std::int64_t count) {
    return to_utf8(std::u32string(static_cast<std::size_t>(count), fill));
  };
  return blanks(left) + std::string(text) + blanks(margin - left);
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to, std::int64_t limit) {
  std::string out;
  std::int64_t done = 0;
  std::size_t at = 0;
  const auto more = [&] { return limit < 0 || done < limit; };
  if (from.empty()) {
    // Between all characters, as Python does.
    for (; at < text.size(); ++done) {
      if (more()) out += to;
      do out += text[at++];
      while (at < text.size() && (text[at] & 0xc0) == 0x80);
    }
    if (more()) out += to;
    return out;
  }
  for (auto found = text.find(from); found != std::string_view::npos && more(); found = text.find(from, at), ++done) {
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  return out + std::string(text.substr(at));
}

bool is_cased_as(std::string_view text, bool (*wanted)(char32_t), bool (*unwanted)(char32_t)) {
  bool any = false;
  for (char32_t c : to_points(text)) {
    if (unwanted(c) || is_title(c)) return false;
    any = any || wanted(c);
  }
  return any;
}

}  // namespace tessera::chat
