#include "data/csv_reader.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::data {

bool CsvReader::next(std::vector<std::string>& fields, std::int64_t& line) {
  while (at_ < text_.size() && (text_[at_] == '\n' || text_.substr(at_, 2) == "\r\n")) skip_line_end();  // blank lines
  fields.clear();
  line = line_;
  if (at_ >= text_.size()) return false;
  for (;;) {
    fields.push_back(at_ < text_.size() && text_[at_] == '"' ? quoted() : plain());
    if (at_ >= text_.size()) return true;
    if (text_[at_] == ',') {
      ++at_;
      continue;
    }
    skip_line_end();
    return true;
  }
}

std::string CsvReader::plain() {
  const auto begin = at_;
  while (!at_line_end() && text_[at_] != ',') ++at_;
  return std::string(text_.substr(begin, at_ - begin));
}

std::string CsvReader::quoted() {
  const auto opened = line_;
  std::string out;
  for (++at_;; ++at_) {
    if (at_ >= text_.size())
      throw DataError(fmt::format("{}:{}: a quoted field that starts here is never closed", file_, opened), file_,
                      opened);
    if (text_[at_] == '"') {
      if (text_.substr(at_ + 1, 1) != "\"") break;
      ++at_;
    } else if (text_[at_] == '\n') {
      ++line_;
    }
    out += text_[at_];
  }
  ++at_;
  if (!at_line_end() && text_[at_] != ',')
    throw DataError(fmt::format("{}:{}: expected a comma or the end of the line after a quoted field", file_, line_),
                    file_, line_);
  return out;
}

}  // namespace tessera::data
