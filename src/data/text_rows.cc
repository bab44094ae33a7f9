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

constexpr std::string_view kBlanks = " \t\r\n";

}  // namespace

bool is_one_object_a_line(std::string_view text) {
  const auto begin = std::min(text.find_first_not_of(kBlanks), text.size());
  text = text.substr(begin);
  if (!text.starts_with('{')) return false;
  const auto end = end_of_value(text.substr(0, kMaxRowBytes), 0);
  const auto line = text.find('\n');
  const auto next = std::min(text.find_first_not_of(kBlanks, end), text.size());
  return end <= line && line < next && next < text.size();
}

std::optional<std::string> without_nan(std::string_view json) {
  const auto has = [json](std::string_view word) { return json.find(word) != std::string_view::npos; };
  if (!has("NaN") && !has("Infinity")) return std::nullopt;  // of nearly every row; the rest goes byte by byte
  std::string out;
  std::size_t plain = 0;  // what is before it has been copied
  for (std::size_t at = 0; at < json.size();) {
    if (json[at] == '"') {
      at = end_of_quoted(json, at);
      continue;
    }
    std::size_t size = 0;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
      if (json.substr(at, word.size()) == word) size = word.size();
    if (size > 0) {
      out.append(json, plain, at - plain).append("null");
      plain = at + size;
    }
    at += std::max<std::size_t>(size, 1);
  }
  if (plain == 0) return std::nullopt;
  return out.append(json, plain);
}

bool TextLines::next(std::string_view& line) {
  while (!rest_.empty()) {
    ++number_;
    const auto window = rest_.substr(0, kMaxRowBytes + 1);
    line = window.substr(0, window.find('\n'));
    if (ends_ == LineEnds::kUniversal) line = line.substr(0, line.find('\r'));
    if (line.size() > kMaxRowBytes) fail_long_row(file_, number_);
    rest_.remove_prefix(std::min(rest_.size(), line.size() + (rest_.substr(line.size(), 2) == "\r\n" ? 2 : 1)));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) return true;
  }
  return false;
}

JsonElements::JsonElements(std::string file, std::string_view text) : file_(std::move(file)), text_(text) {
  at_ = skip_blanks(0);
  in_object_ = at_ < text_.size() && text_[at_] == '{';
  const auto data = in_object_ ? find_data() : at_;
  is_row_ = in_object_ && data >= text_.size();
  if (is_row_) return;
  at_ = data;
  if (at_ >= text_.size() || text_[at_] != '[')
    fail("expected an array of objects (or an object with such an array under \"data\")");
  ++at_;
}

bool JsonElements::next_whole(std::string_view& element) {
  if (number_ > 0) return false;
  ++number_;
  element = text_.substr(at_);
  if (element.size() > kMaxRowBytes) fail_long_row(file_, number_);
  return true;
}

bool JsonElements::next(std::string_view& element) {
  if (is_row_) return next_whole(element);
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

std::size_t JsonElements::find_data() const {
  for (auto at = skip_blanks(at_ + 1); at < text_.size() && text_[at] == '"'; at = skip_blanks(at + 1)) {
    const auto end = end_of_quoted(text_, at);
    const auto value = skip_blanks(skip_blanks(end) + 1);
    if (value < text_.size() && text_[value] == '[' && text_.substr(at, end - at) == "\"data\"") return value;
    at = skip_blanks(end_of_value(text_, value));
    if (at >= text_.size() || text_[at] != ',') break;
  }
  return text_.size();
}

std::size_t JsonElements::skip_blanks(std::size_t at) const {
  return std::min(text_.find_first_not_of(kBlanks, at), text_.size());
}

void JsonElements::fail(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", file_, what), file_);
}

}  // namespace tessera::data
