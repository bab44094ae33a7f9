#include "data/csv_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/row_limit.h"
#include "tessera/base/error.h"

namespace tessera::data {

bool CsvReader::at_line_end() const {
  return at_ >= seen_.size() || seen_[at_] == '\n' || seen_[at_] == '\r';
}

void CsvReader::skip_line_end() {
  at_ += seen_.substr(at_, 2) == "\r\n" ? 2 : 1;
  ++line_;
}

void CsvReader::skip_empty_lines() {
  while (at_ < seen_.size()) {
    const auto begin = at_;
    if (dialect_ == CsvDialect::kRfc4180)
      while (!at_line_end() && seen_[at_] != separator_ && (seen_[at_] == ' ' || seen_[at_] == '\t')) ++at_;
    if (!at_line_end()) {
      at_ = begin;
      return;
    }
    if (at_ < seen_.size()) skip_line_end();
  }
}

bool CsvReader::next(std::vector<std::string>& fields, std::int64_t& line) {
  seen_ = text_;
  skip_empty_lines();
  seen_ = text_.substr(0, std::min(text_.size(), at_ + kMaxRowBytes));
  fields.clear();
  line = record_line_ = line_;
  if (at_ >= seen_.size()) return false;
  for (;;) {
    fields.push_back(field());
    if (at_ >= seen_.size()) {
      check_length();
      return true;
    }
    if (seen_[at_] == separator_) {
      ++at_;
      continue;
    }
    skip_line_end();
    return true;
  }
}

void CsvReader::check_length() const {
  if (seen_.size() < text_.size()) fail_long_row(file_, record_line_);
}

std::string CsvReader::field() {
  std::string out;
  if (at_ < seen_.size() && seen_[at_] == '"') {
    quoted(out);
    if (dialect_ == CsvDialect::kRfc4180) {
      if (!at_line_end() && seen_[at_] != separator_)
        throw DataError(fmt::format("{}:{}: expected a {} or the end of the line after a quoted field", file_, line_,
                                    separator_ == '\t' ? "tab" : "comma"),
                        file_, line_);
      return out;
    }
  }
  plain(out);
  return out;
}

void CsvReader::plain(std::string& out) {
  const auto begin = at_;
  const std::array<char, 3> ends{separator_, '\r', '\n'};
  at_ = std::min(seen_.find_first_of(ends.data(), at_, ends.size()), seen_.size());
  out += seen_.substr(begin, at_ - begin);
}

void CsvReader::quoted(std::string& out) {
  const auto opened = line_;
  for (++at_;;) {
    const auto quote = seen_.find('"', at_);
    append_lines(seen_.substr(at_, quote - at_), out);
    if (quote == std::string_view::npos) {
      check_length();
      if (dialect_ == CsvDialect::kRfc4180)
        throw DataError(fmt::format("{}:{}: a quoted field that starts here is never closed", file_, opened), file_,
                        opened);
      at_ = seen_.size();
      return;
    }
    at_ = quote + 1;
    if (seen_.substr(at_, 1) != "\"") return;
    out += '"';
    ++at_;
  }
}

void CsvReader::append_lines(std::string_view part, std::string& out) {
  if (dialect_ == CsvDialect::kPython) {
    for (std::size_t r; (r = part.find('\r')) != std::string_view::npos;) {
      out += part.substr(0, r);
      const bool alone = part.substr(r, 2) != "\r\n";
      if (alone) {
        out += '\n';
        ++line_;
      }
      part.remove_prefix(r + 1);
    }
  }
  line_ += std::count(part.begin(), part.end(), '\n');
  out += part;
}

}  // namespace tessera::data
