#pragma once
// A text with a cursor, and its rows in a window.
#include <string>
#include <string_view>
#include <vector>

namespace tessera::terminal {

/// The cursor stands before a grapheme cluster (what is seen as one character) or at the end.
class TypedText {
 public:
  const std::string& text() const { return text_; }
  std::size_t cursor() const { return cursor_; }  // in bytes
  void set(std::string text);                     // the cursor goes to the end
  void insert(std::string_view text);

  /// Places that the cursor may move to, or to which it may cut.
  std::size_t left() const;
  std::size_t right() const;
  std::size_t word_left() const;
  std::size_t word_right() const;
  std::size_t spaced_left() const;  // the begin of what white space ends
  std::size_t line_begin() const;
  std::size_t line_end() const;
  /// The same column a line above or below; npos: there is no such line.
  std::size_t above() const;
  std::size_t below() const;

  void move(std::size_t place) { cursor_ = place; }
  /// Takes out what is between the cursor and the place.
  std::string cut(std::size_t place);

 private:
  std::size_t begin_of_line(std::size_t at) const;
  /// As far behind `begin`, in its line, as the cursor is in its own.
  std::size_t same_column(std::size_t begin) const;

  std::string text_;
  std::size_t cursor_ = 0;
};

struct Layout {
  std::vector<std::string> rows;
  std::vector<std::size_t> widths;  // of the rows, in cells
  std::size_t row = 0, column = 0;  // of the cursor
};

/// The prompt and the text, broken where a window of so many columns ends. Wide characters (CJK, emoji) take two cells,
/// combining ones none.
Layout lay_out(std::string_view prompt, const TypedText& text, std::size_t columns);

}  // namespace tessera::terminal
