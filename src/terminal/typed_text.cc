#include "terminal/typed_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "text/unicode.h"

namespace tessera::terminal {
namespace {

/// Where the cluster that begins at `at` ends, and its width in cells.
std::size_t cluster_end(std::string_view text, std::size_t at, std::size_t* cells = nullptr) {
  std::string_view rest = text.substr(at);
  std::size_t end = at, width = 0;
  char32_t before = 0;
  std::int32_t state = 0;
  while (!rest.empty()) {
    const char32_t c = next_code_point(rest);
    if (end > at && text::is_grapheme_break(before, c, state)) break;
    width += static_cast<std::size_t>(std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c))));
    before = c;
    end = text.size() - rest.size();
  }
  if (cells != nullptr) *cells = width;
  return end;
}

bool is_of_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || (c & 0x80) != 0;
}
bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n';
}

/// Over what is not, then over what is.
template <typename Is>
std::size_t begin_of(const std::string& text, std::size_t at, Is is) {
  while (at > 0 && !is(text[at - 1])) --at;
  while (at > 0 && is(text[at - 1])) --at;
  return at;
}

}  // namespace

void TypedText::set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void TypedText::insert(std::string_view text) {
  text_.insert(cursor_, text);
  cursor_ += text.size();
}

std::size_t TypedText::left() const {
  std::size_t at = line_begin();
  if (at == cursor_) return at > 0 ? at - 1 : 0;
  for (std::size_t end = at; (end = cluster_end(text_, at)) < cursor_;) at = end;
  return at;
}

std::size_t TypedText::right() const {
  return cluster_end(text_, cursor_);
}

std::size_t TypedText::word_left() const {
  return begin_of(text_, cursor_, is_of_word);
}

std::size_t TypedText::word_right() const {
  std::size_t at = cursor_;
  while (at < text_.size() && !is_of_word(text_[at])) ++at;
  while (at < text_.size() && is_of_word(text_[at])) ++at;
  return at;
}

std::size_t TypedText::spaced_left() const {
  return begin_of(text_, cursor_, [](char c) { return !is_space(c); });
}

std::size_t TypedText::begin_of_line(std::size_t at) const {
  const auto end = at > 0 ? text_.rfind('\n', at - 1) : std::string::npos;
  return end == std::string::npos ? 0 : end + 1;
}

std::size_t TypedText::line_begin() const {
  return begin_of_line(cursor_);
}

std::size_t TypedText::line_end() const {
  return std::min(text_.find('\n', cursor_), text_.size());
}

std::size_t TypedText::same_column(std::size_t begin) const {
  for (std::size_t at = line_begin(); at < cursor_ && begin < text_.size() && text_[begin] != '\n';) {
    at = cluster_end(text_, at);
    begin = cluster_end(text_, begin);
  }
  return begin;
}

std::size_t TypedText::above() const {
  const std::size_t begin = line_begin();
  return begin == 0 ? std::string::npos : same_column(begin_of_line(begin - 1));
}

std::size_t TypedText::below() const {
  const std::size_t end = line_end();
  return end == text_.size() ? std::string::npos : same_column(end + 1);
}

std::string TypedText::cut(std::size_t place) {
  const auto [from, to] = std::minmax(place, cursor_);
  std::string taken = text_.substr(from, to - from);
  text_.erase(from, to - from);
  cursor_ = from;
  return taken;
}

Layout lay_out(std::string_view prompt, const TypedText& typed, std::size_t columns) {
  constexpr std::string_view kTab = "    ";
  Layout out{{""}, {0}};
  const auto next_row = [&] {
    out.rows.emplace_back();
    out.widths.push_back(0);
  };
  const auto add = [&](std::string_view text, std::size_t cursor) {
    for (std::size_t at = 0, end = 0; at <= text.size(); at = end) {
      std::size_t cells = 0;
      end = at < text.size() ? cluster_end(text, at, &cells) : at + 1;
      std::string_view cluster = at < text.size() ? text.substr(at, end - at) : "";
      const bool ends_line = cluster == "\n";
      if (cluster == "\t") cluster = kTab, cells = kTab.size();
      // The cursor at the end needs a cell, too.
      const std::size_t needed = cluster.empty() && at == cursor ? 1 : ends_line ? 0 : cells;
      if (out.widths.back() + needed > columns) next_row();
      if (at == cursor) {
        out.row = out.rows.size() - 1;
        out.column = out.widths.back();
      }
      if (ends_line) {
        next_row();
      } else {
        out.rows.back() += cluster;
        out.widths.back() += cells;
      }
    }
  };
  add(prompt, std::string_view::npos);
  add(typed.text(), typed.cursor());
  return out;
}

}  // namespace tessera::terminal
