// RFC 4180: fields in double quotes may hold commas, line breaks and doubled quotes; lines end with \n or \r\n.
#include <fmt/format.h>

#include <algorithm>

#include "data/row_table.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

class CsvReader {
 public:
  CsvReader(const std::string& file, std::string_view text) : file_(file), text_(text) {}

  // False at the end of the file. `line` is the line on which the record starts.
  bool next(std::vector<std::string>& fields, std::int64_t& line) {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_.substr(at_, 2) == "\r\n"))
      skip_line_end();  // blank lines
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

 private:
  bool at_line_end() const { return at_ >= text_.size() || text_[at_] == '\n' || text_.substr(at_, 2) == "\r\n"; }
  void skip_line_end() {
    at_ += text_[at_] == '\r' ? 2 : 1;
    ++line_;
  }
  std::string plain() {
    const auto begin = at_;
    while (!at_line_end() && text_[at_] != ',') ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::string quoted() {
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

  const std::string& file_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

bool is_integer(const std::string& s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::vector<TextPair> read_csv(const std::string& file, std::string_view text, const ReadOptions& options) {
  CsvReader reader(file, text);
  std::vector<std::string> columns, fields;
  std::int64_t line = 0;
  if (!reader.next(columns, line)) return {};
  const auto names = choose_columns(file, line, columns, options);
  const auto index = [&](const std::string& name) {
    return static_cast<std::size_t>(std::find(columns.begin(), columns.end(), name) - columns.begin());
  };
  const auto source = index(names.text), target = index(names.label);
  std::vector<TextPair> rows;
  while (reader.next(fields, line)) {
    if (fields.size() != columns.size())
      throw DataError(fmt::format("{}:{}: expected {} fields as in the header, found {}", file, line, columns.size(),
                                  fields.size()),
                      file, line);
    auto label = label_text(file, line, fields[target], is_integer(fields[target]), options);
    rows.push_back({std::move(fields[source]), std::move(label), file, line});
  }
  return rows;
}

}  // namespace tessera::data
