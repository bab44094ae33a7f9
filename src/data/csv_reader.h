#pragma once
// RFC 4180: fields in double quotes may hold commas, line breaks and doubled quotes; lines end with \n or \r\n.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

class CsvReader {
 public:
  /// `text` outlives the reader.
  CsvReader(std::string file, std::string_view text) : file_(std::move(file)), text_(text) {}

  /// False at the end of the file. `line` is the line on which the record starts. DataError for a quote that is never
  /// closed or has something behind it.
  bool next(std::vector<std::string>& fields, std::int64_t& line);

 private:
  bool at_line_end() const { return at_ >= text_.size() || text_[at_] == '\n' || text_.substr(at_, 2) == "\r\n"; }
  void skip_line_end() {
    at_ += text_[at_] == '\r' ? 2 : 1;
    ++line_;
  }
  std::string plain();
  std::string quoted();

  std::string file_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace tessera::data
