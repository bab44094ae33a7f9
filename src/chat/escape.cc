#include "chat/escape.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "chat/unicode.h"

namespace tessera::chat {
namespace {

// &name; or &#number; at the front of `text`; the character in UTF-8 and the length, or length 0.
std::pair<std::string, std::size_t> entity(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames{
      {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\xc2\xa0"}}};
  for (const auto& [name, character] : kNames)
    if (text.starts_with(name)) return {std::string(character), name.size()};
  const auto end = text.find(';');
  if (!text.starts_with("&#") || end == std::string_view::npos || end < 3 || end > 10) return {};
  const bool hex = (text[2] | 32) == 'x';
  const std::string digits(text.substr(hex ? 3 : 2, end - (hex ? 3 : 2)));
  char* stop = nullptr;
  const unsigned long code = std::strtoul(digits.c_str(), &stop, hex ? 16 : 10);
  if (digits.empty() || *stop != '\0' || code == 0 || code > 0x10ffff) return {};
  std::string out;
  append_point(out, static_cast<char32_t>(code));
  return {out, end + 1};
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
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
  return out;
}

std::string strip_tags(std::string_view text) {
  std::string bare;
  for (std::size_t at = 0; at < text.size();) {
    const bool comment = text.substr(at, 4) == "<!--";
    const auto end = text[at] != '<' ? std::string_view::npos : text.find(comment ? "-->" : ">", at);
    if (end != std::string_view::npos)
      at = end + (comment ? 3 : 1);
    else
      bare += text[at++];
  }
  std::u32string words;
  for (char32_t c : to_points(bare)) {
    if (!is_space(c))
      words += c;
    else if (!words.empty() && words.back() != ' ')
      words += ' ';
  }
  if (!words.empty() && words.back() == ' ') words.pop_back();
  const std::string collapsed = to_utf8(words);
  std::string out;
  for (std::size_t at = 0; at < collapsed.size();) {
    const auto [character, size] =
        collapsed[at] == '&' ? entity(std::string_view(collapsed).substr(at)) : std::pair<std::string, std::size_t>{};
    out += size > 0 ? character : std::string(1, collapsed[at]);
    at += size > 0 ? size : 1;
  }
  return out;
}

}  // namespace tessera::chat
