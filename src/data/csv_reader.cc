#include "data/csv_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::data {

bool CsvReader::at_line_end() const {
  if (at_ >= text_.size() || text_[at_] == '\n') return true;
  if (text_[at_] != '\r') return false;
  return dialect_ == CsvDialect::kPython || text_.substr(at_, 2) == "\r\n";
}

void CsvReader::skip_line_end() {
  at_ += text_.substr(at_, 2) == "\r\n" ? 2 : 1;
  ++line_;
}

bool CsvReader::next(std::vector<std::string>& fields, std::int64_t& line) {
  while (at_ < text_.size() && at_line_end()) skip_line_end();
  fields.clear();
  line = line_;
  if (at_ >= text_.size()) return false;
  for (;;) {
    fields.push_back(field());
    if (at_ >= text_.size()) return true;
    if (text_[at_] == ',') {
      ++at_;
      continue;
    }
    skip_line_end();
    return true;
  }
}

std::string CsvReader::field() {
  std::string out;
  if (at_ < text_.size() && text_[at_] == '"') {
    quoted(out);
    if (dialect_ == CsvDialect::kRfc4180) {
      if (!at_line_end() && text_[at_] != ',')
        throw DataError(
            fmt::format("{}:{}: expected a comma or the end of the line after a quoted field", file_, line_), file_,
            line_);
      return out;
    }
  }
  plain(out);
  return out;
}

void CsvReader::plain(std::string& out) {
  const auto begin = at_;
  while (!at_line_end() && text_[at_] != ',') at_ = std::min(text_.find_first_of(",\r\n", at_ + 1), text_.size());
  out += text_.substr(begin, at_ - begin);
}

void CsvReader::quoted(std::string& out) {
  const auto opened = line_;
  for (++at_;;) {
    const auto quote = text_.find('"', at_);
    append_lines(text_.substr(at_, quote - at_), out);
    if (quote == std::string_view::npos) {
      if (dialect_ == CsvDialect::kRfc4180)
        throw DataError(fmt::format("{}:{}: a quoted field that starts here is never closed", file_, opened), file_,
                        opened);
      at_ = text_.size();
      return;
    }
    at_ = quote + 1;
    if (text_.substr(at_, 1) != "\"") return;
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
