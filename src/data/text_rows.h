#pragma once
// Rows of a text in memory (or a mapped file), found without parsing them, and none longer than a row may be
// (base/row_limit.h): nothing behind that length is looked at.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

/// Lines, without their ends ("\n" or "\r\n").
class TextLines {
 public:
  /// `text` outlives the object; `file` names it in messages.
  TextLines(std::string file, std::string_view text) : file_(std::move(file)), rest_(text) {}

  /// The next line with anything but spaces and tabs in it; false at the end. DataError when it is too long.
  bool next(std::string_view& line);
  std::int64_t number() const { return number_; }  // of the last line, from 1

 private:
  std::string file_;
  std::string_view rest_;
  std::int64_t number_ = 0;
};

/// Elements of the outermost JSON array; in an object of its array "data", or else of its first array.
class JsonElements {
 public:
  /// As above. DataError when there is no such array.
  JsonElements(std::string file, std::string_view text);

  /// False at the end. DataError when an element is too long, no comma is between two, or the array is never closed.
  bool next(std::string_view& element);
  std::int64_t number() const { return number_; }  // of the last element, from 1

 private:
  std::size_t find_array() const;
  std::size_t skip_blanks(std::size_t at) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string file_;
  std::string_view text_;
  std::size_t at_ = 0;
  bool in_object_ = false;
  std::int64_t number_ = 0;
};

}  // namespace tessera::data
