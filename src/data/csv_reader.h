#pragma once
// CSV records out of a text in memory (or a mapped file): fields in double quotes may hold commas, line breaks and
// doubled quotes. Lines end with \n, \r\n or \r.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

enum class CsvDialect {
  kRfc4180,  // a quote that is never closed or has something behind it is an error; as pandas, lines of blanks alone
             // are left out
  kPython,  // as Python's csv.reader on a file opened as text: nothing but its length makes a record an error, and line
            // ends within a field become \n
};

class CsvReader {
 public:
  /// `text` outlives the reader.
  CsvReader(std::string file, std::string_view text, CsvDialect dialect = CsvDialect::kRfc4180, char separator = ',')
      : file_(std::move(file)), text_(text), dialect_(dialect), separator_(separator) {}

  /// False at the end of the file. Empty lines are no records. `line` is the line on which the record starts. DataError
  /// names the line; also of a record that is too long (base/row_limit.h).
  bool next(std::vector<std::string>& fields, std::int64_t& line);

 private:
  /// At the end of what is seen of the text: DataError unless that is all of it.
  void check_length() const;
  bool at_line_end() const;
  void skip_line_end();
  void skip_empty_lines();
  /// The field up to a separator or the end of the line, at `at_`.
  std::string field();
  void plain(std::string& out);
  void quoted(std::string& out);
  void append_lines(std::string_view part, std::string& out);

  std::string file_;
  std::string_view text_, seen_;  // all of it; up to where the record must end
  CsvDialect dialect_;
  char separator_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1, record_line_ = 1;
};

}  // namespace tessera::data
