#include "data/text_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/row_limit.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

// Behind the closing quote of the JSON text whose opening quote is at `at`; the whole text's end if there is none.
std::size_t end_of_quoted(std::string_view text, std::size_t at) {
  const auto begin = ++at;
  for (; (at = text.find('"', at)) != std::string_view::npos; ++at) {
    auto escapes = at;
    while (escapes > begin && text[escapes - 1] == '\\') --escapes;
    if ((at - escapes) % 2 == 0) return at + 1;
  }
  return text.size();
}

// Where the JSON value that begins at `at` ends, found by counting brackets; the text's end if it does not.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_quoted(text, at);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
    ++at;
    if ((c == '}' || c == ']') && --depth == 0) return at;
  }
  return text.size();
}

}  // namespace

bool TextLines::next(std::string_view& line) {
  while (!rest_.empty()) {
    ++number_;
    const auto end = rest_.substr(0, kMaxRowBytes + 1).find('\n');
    if (end == std::string_view::npos && rest_.size() > kMaxRowBytes) fail_long_row(file_, number_);
    line = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) return true;
  }
  return false;
}

JsonElements::JsonElements(std::string file, std::string_view text) : file_(std::move(file)), text_(text) {
  at_ = skip_blanks(0);
  in_object_ = at_ < text_.size() && text_[at_] == '{';
  if (in_object_) at_ = find_array();
  if (at_ >= text_.size() || text_[at_] != '[')
    fail("expected an array of objects (or an object with such an array under \"data\")");
  ++at_;
}

bool JsonElements::next(std::string_view& element) {
  at_ = skip_blanks(at_);
  const bool closed = at_ < text_.size() && text_[at_] == ']';
  if (closed && !in_object_ && skip_blanks(at_ + 1) < text_.size())
    fail("something stands behind the array of rows; one array is expected, or one object a line (.jsonl)");
  if (closed) return false;
  if (number_ > 0 && at_ < text_.size()) {
    if (text_[at_] != ',') fail(fmt::format("expected a comma or the array's end behind row {}", number_));
    at_ = skip_blanks(at_ + 1);
  }
  const auto window = text_.substr(0, std::min(text_.size(), at_ + kMaxRowBytes + 1));
  const auto end = end_of_value(window, at_);
  ++number_;
  if (end == window.size() && window.size() < text_.size()) fail_long_row(file_, number_);
  if (end == text_.size()) fail("the array of rows is never closed");
  if (end == at_) fail(fmt::format("row {} is empty", number_));
  element = text_.substr(at_, end - at_);
  at_ = end;
  return true;
}

std::size_t JsonElements::find_array() const {
  std::size_t first = text_.size();
  for (auto at = skip_blanks(at_ + 1); at < text_.size() && text_[at] == '"'; at = skip_blanks(at + 1)) {
    const auto end = end_of_quoted(text_, at);
    const auto value = skip_blanks(skip_blanks(end) + 1);
    const bool is_array = value < text_.size() && text_[value] == '[';
    if (is_array && text_.substr(at, end - at) == "\"data\"") return value;
    if (is_array) first = std::min(first, value);
    at = skip_blanks(end_of_value(text_, value));
    if (at >= text_.size() || text_[at] != ',') break;
  }
  return first;
}

std::size_t JsonElements::skip_blanks(std::size_t at) const {
  return std::min(text_.find_first_not_of(" \t\r\n", at), text_.size());
}

void JsonElements::fail(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", file_, what), file_);
}

}  // namespace tessera::data
