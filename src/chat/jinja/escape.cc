#include "chat/jinja/escape.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "chat/jinja/text_builder.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

// &name; or &#number; at the front of `text`; the character in UTF-8 and the length, or length 0.
std::pair<std::string, std::size_t> entity(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames{
      {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\xc2\xa0"}}};
  for (const auto& [name, character] : kNames)
    if (text.starts_with(name)) return {std::string(character), name.size()};
  const auto end = text.substr(0, 12).find(';');
  if (!text.starts_with("&#") || end == std::string_view::npos || end < 3 || end > 10) return {};
  const bool hex = (text[2] | 32) == 'x';
  const std::string digits(text.substr(hex ? 3 : 2, end - (hex ? 3 : 2)));
  char* stop = nullptr;
  const unsigned long code = std::strtoul(digits.c_str(), &stop, hex ? 16 : 10);
  if (digits.empty() || *stop != '\0' || code == 0 || code > 0x10ffff) return {};
  std::string out;
  append_utf8(static_cast<char32_t>(code), out);
  return {out, end + 1};
}

}  // namespace

std::string escape_html(std::string_view text) {
  TextBuilder out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out.take();
}

std::string strip_tags(std::string_view text) {
  // Comments and tags; the first that is not closed ends the search.
  TextBuilder bare;
  std::size_t at = 0;
  for (auto open = text.find('<'); open != std::string_view::npos; open = text.find('<', at)) {
    const bool comment = text.substr(open, 4) == "<!--";
    const auto close = comment ? text.find("-->", open + 4) : text.find('>', open);
    if (close == std::string_view::npos) break;
    bare += text.substr(at, open - at);
    at = close + (comment ? 3 : 1);
  }
  bare += text.substr(at);
  std::u32string words;
  for (char32_t c : to_points(bare.text())) {
    if (!is_space(c))
      words += c;
    else if (!words.empty() && words.back() != ' ')
      words += ' ';
  }
  if (!words.empty() && words.back() == ' ') words.pop_back();
  const std::string collapsed = to_utf8(words);
  TextBuilder out;
  for (std::size_t at = 0; at < collapsed.size();) {
    const auto [character, size] =
        collapsed[at] == '&' ? entity(std::string_view(collapsed).substr(at)) : std::pair<std::string, std::size_t>{};
    if (size > 0)
      out += character;
    else
      out += collapsed[at];
    at += std::max<std::size_t>(size, 1);
  }
  return out.take();
}

}  // namespace tessera::chat
