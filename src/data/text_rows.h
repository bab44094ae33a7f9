#pragma once
// Rows of a text in memory (or a mapped file), found without parsing them, and none longer than a row may be
// (base/row_limit.h): nothing behind that length is looked at.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::data {

enum class LineEnds {
  kLineFeed,   // "\n" or "\r\n"
  kUniversal,  // "\r" as well
};

/// Lines, without their ends.
class TextLines {
 public:
  /// `text` outlives the object; `file` names it in messages.
  TextLines(std::string file, std::string_view text, LineEnds ends = LineEnds::kLineFeed)
      : file_(std::move(file)), rest_(text), ends_(ends) {}

  /// The next line with anything but spaces and tabs in it; false at the end. DataError when it is too long.
  bool next(std::string_view& line);
  std::int64_t number() const { return number_; }  // of the last line, from 1

 private:
  std::string file_;
  std::string_view rest_;
  LineEnds ends_;
  std::int64_t number_ = 0;
};

/// {"a": 1}\n{"a": 2}, whatever the file is called.
bool is_one_object_a_line(std::string_view text);

/// The text with null for NaN, Infinity and -Infinity, which Python writes though JSON has no word for them; nothing:
/// it has none of them.
std::optional<std::string> without_nan(std::string_view json);

/// Elements of the outermost JSON array; of an object those of its array "data", or else itself, the one row.
class JsonElements {
 public:
  /// As above. DataError when it is neither.
  JsonElements(std::string file, std::string_view text);

  /// False at the end. DataError when an element is too long, no comma is between two, or the array is never closed.
  bool next(std::string_view& element);
  std::int64_t number() const { return number_; }  // of the last element, from 1

 private:
  /// Where the object's array "data" begins; the text's end: it has none.
  std::size_t find_data() const;
  bool next_whole(std::string_view& element);
  std::size_t skip_blanks(std::size_t at) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string file_;
  std::string_view text_;
  std::size_t at_ = 0;
  bool in_object_ = false, is_row_ = false;
  std::int64_t number_ = 0;
};

}  // namespace tessera::data
