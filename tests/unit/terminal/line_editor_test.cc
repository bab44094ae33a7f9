// The editor on a pseudo terminal: what is entered, and what a window shows.
#include "terminal/line_editor.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/file.h"
#include "base/utf8.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::terminal {
namespace {

/// The rows of a window that scrolls, as far as the editor's control sequences go. A wide character fills two cells.
class Screen {
 public:
  Screen(std::size_t columns, std::size_t rows) : columns_(columns), cells_(rows) {}

  void show(std::string_view text) {
    while (!text.empty()) {
      if (text.starts_with("\x1b[")) {
        const auto end = text.find_first_of("AGHJhl", 2);
        const std::string number(text.substr(2, end - 2));
        control(text[end], number.empty() || number[0] == '?' ? 1 : std::stoul(number));
        text.remove_prefix(end + 1);
      } else if (text[0] == '\r') {
        column_ = 0;
        text.remove_prefix(1);
      } else if (text[0] == '\n') {
        if (++row_ == cells_.size()) cells_.erase(cells_.begin()), cells_.emplace_back(), --row_;
        text.remove_prefix(1);
      } else {
        const std::string_view before = text;
        const char32_t c = next_code_point(text);
        put(c, std::string(before.substr(0, before.size() - text.size())));
      }
    }
  }
  /// As most terminals do it: rows that are too long now go on below.
  void narrow(std::size_t columns) {
    std::vector<std::vector<std::string>> rows;
    std::size_t row = 0;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (i == row_) row = rows.size() + column_ / columns;
      for (std::size_t at = 0; at == 0 || at < cells_[i].size(); at += columns) {
        const auto& from = cells_[i];
        rows.emplace_back(from.begin() + static_cast<std::ptrdiff_t>(at),
                          from.begin() + static_cast<std::ptrdiff_t>(std::min(at + columns, from.size())));
      }
    }
    rows.resize(std::max(rows.size(), cells_.size()));
    cells_ = std::move(rows);
    row_ = row;
    column_ %= columns;
    columns_ = columns;
  }
  /// The rows without empty ones at the end; the cursor's cell is marked.
  std::string text() const {
    std::string out;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      for (std::size_t j = 0; j < std::max(cells_[i].size(), i == row_ ? column_ : 0); ++j) {
        if (i == row_ && j == column_) out += "|";
        out += j < cells_[i].size() ? cells_[i][j] : " ";
      }
      if (i == row_ && column_ >= cells_[i].size()) out += "|";
      out += "\n";
    }
    return out.substr(0, out.find_last_not_of('\n') + 1);
  }

 private:
  void put(char32_t c, const std::string& bytes) {
    const bool is_wide = c >= 0x1100 && c != 0xFFFD, is_combining = c >= 0x300 && c < 0x370;
    auto& row = cells_[row_];
    if (is_combining) {
      row[column_ - 1] += bytes;
      return;
    }
    ASSERT_LE(column_ + (is_wide ? 2 : 1), columns_) << "the editor breaks rows itself";
    row.resize(std::max(row.size(), column_ + (is_wide ? 2 : 1)), " ");
    row[column_++] = bytes;
    if (is_wide) row[column_++] = "";
  }
  void control(char what, std::size_t n) {
    if (what == 'A') row_ -= std::min(n, row_);
    if (what == 'G') column_ = std::min(n, columns_) - 1;
    if (what != 'J') return;
    cells_[row_].resize(std::min(cells_[row_].size(), column_));
    for (std::size_t i = row_ + 1; i < cells_.size(); ++i) cells_[i].clear();
  }

  std::size_t columns_, row_ = 0, column_ = 0;
  std::vector<std::vector<std::string>> cells_;
};

class Editor : public ::testing::Test {
 protected:
  static constexpr std::string_view kEnd = "\x1b[?2004l";
  void open(unsigned short columns, unsigned short rows) {
    window_ = {rows, columns, 0, 0};
    // No echo and no special keys, so that what is typed before the editor reads stays what it is.
    termios raw{};
    ASSERT_EQ(::openpty(&master_, &slave_, nullptr, nullptr, &window_), 0);
    ::tcgetattr(slave_, &raw);
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
    ::tcsetattr(slave_, TCSANOW, &raw);
  }
  void SetUp() override { open(20, 6); }
  void TearDown() override { ::close(master_), ::close(slave_); }

  /// Types before anybody reads.
  void type(const std::string& keys) {
    ASSERT_EQ(::write(master_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  Typed read() { return LineEditor(slave_, slave_, history_).read("> "); }
  std::string entered(const std::string& keys) {
    type(keys + "\r");
    const Typed typed = read();
    (void)written(kEnd);
    EXPECT_EQ(typed.how, Typed::How::kEntered);
    return typed.text;
  }
  /// What is written until its end is `end`.
  std::string written(std::string_view end) {
    std::string out;
    while (!out.ends_with(end)) {
      char bytes[4096];
      const ssize_t n = ::read(master_, bytes, sizeof bytes);
      if (n <= 0) throw std::runtime_error("nothing is written behind " + out);
      out.append(bytes, static_cast<std::size_t>(n));
    }
    return out;
  }
  /// What the window shows before Enter; a second one that the user makes of it, if `columns` says how wide.
  std::string shown(const std::string& keys, unsigned short columns = 0) {
    type(keys);
    std::thread reader([&] { read(); });
    Screen screen(window_.ws_col, window_.ws_row);
    screen.show(written("G"));  // the cursor goes to its place
    if (columns != 0) {
      screen.narrow(columns);
      window_.ws_col = columns;
      ::ioctl(master_, TIOCSWINSZ, &window_);
      screen.show(written("G"));  // the cursor goes to its place
    }
    type("\r");
    reader.join();
    (void)written(kEnd);
    return screen.text();
  }

  winsize window_{};
  int master_ = -1, slave_ = -1;
  History history_;
};

TEST_F(Editor, KeysMoveAndCut) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"abc\x1b[D\x1b[DX", "aXbc"},       // left
      {"abc\x1b[H\x1b[CX", "aXbc"},       // home, right
      {"abc\x01X\x05Y", "XabcY"},         // Ctrl-A, Ctrl-E
      {"abc\x1bOHX\x1bOFY", "XabcY"},     // as applications' keys
      {"abc\x1b[1~X\x1b[4~Y", "XabcY"},   // as the Linux console has them
      {"one two\x1b[1;5DX", "one Xtwo"},  // Ctrl-left
      {"one two\x1b"
       "b\x1b"
       "bX\x1b"
       "fY",
       "XoneY two"},                          // Alt-b, Alt-f
      {"one two\x01\x1b[1;5CX", "oneX two"},  // Ctrl-right
      {"one two\x1b[D\x0b"
       "X",
       "one twX"},                       // Ctrl-K
      {"one two\x1b[D\x15X", "Xo"},      // Ctrl-U
      {"one t-wo\x17X", "one X"},        // Ctrl-W goes back to white space
      {"one t-wo\x1b\x7fX", "one t-X"},  // Alt-Backspace to the begin of the word
      {"one two\x01\x1b"
       "dX",
       "X two"},                           // Alt-d
      {"one two\x17\x01\x19", "twoone "},  // Ctrl-Y brings back what was cut
      {"abc\x7f\x08X", "aX"},
      {"abc\x01\x1b[3~\x04X", "Xc"},         // Delete, Ctrl-D
      {"a\x1b\rb", "a\nb"},                  // Alt-Enter
      {"\x7f\x1b[D\x1b[C\x17ok", "ok"},      // at the ends of nothing
      {"a\x1b[15~\x1b[24;2~\x1b[Zb", "ab"},  // keys without meaning
  };
  for (const auto& [keys, text] : cases) EXPECT_EQ(entered(keys), text) << testing::PrintToString(keys);
}

TEST_F(Editor, ACharacterIsWhatIsSeenAsOne) {
  EXPECT_EQ(entered("a日本\x7f"
                    "b"),
            "a日b");
  EXPECT_EQ(entered("ae\u0301\x7f"
                    "b"),
            "ab")
      << "a letter with its accent";
  EXPECT_EQ(entered("ü\x1b[Dx"), "xü");
  EXPECT_EQ(entered("x👩‍👩‍👧\x7f"
                    "y"),
            "xy")
      << "a family is one character of five code points";
  EXPECT_EQ(entered("a\xff\xc3(b"), "ab") << "what is no UTF-8 is not taken";
}

TEST_F(Editor, APasteIsOneText) {
  EXPECT_EQ(entered("<\x1b[200~one\ttwo\rthree\n\x01 end\r\r\x1b[201~>"), "<one\ttwo\nthree\n end>");
}

TEST_F(Editor, TheHistoryComesBackByArrowsAndBySearch) {
  for (const auto* entry : {"first pear", "a cat", "a cat", "second pear", "two\nlines"}) history_.add(entry);
  EXPECT_EQ(history_.entries().size(), 4U);
  EXPECT_EQ(entered("\x1b[A\x1b[A\x1b[A!"), "second pear!") << "the second goes to the upper line";
  EXPECT_EQ(entered("mine\x1b[A\x1b[B!"), "mine!") << "what was typed comes back";
  EXPECT_EQ(entered("\x12pear"), "second pear");
  EXPECT_EQ(entered("\x12pear\x12"), "first pear");
  EXPECT_EQ(entered("\x12peaX\x7f\x1b[D!"), "second pea!r") << "another key goes on with what was found";
  EXPECT_EQ(entered("mine\x12pear\x07!"), "mine!") << "Ctrl-G leaves the search";
}

TEST_F(Editor, CtrlCAndCtrlDEndOnlyWhereNothingIsTyped) {
  type(
      "abc\x03"
      "d\r");
  EXPECT_EQ(read().text, "d");
  type("\x03");
  EXPECT_EQ(read().how, Typed::How::kInterrupted);
  type("a\x1b[D\x04\x04");
  EXPECT_EQ(read().how, Typed::How::kEnded);
}

TEST_F(Editor, TheWindowShowsTheCursorWhereItIs) {
  EXPECT_EQ(shown("abc\x1b[D"), "> ab|c");
  EXPECT_EQ(shown("日本語\x1b[D"), "> 日本|語");
  EXPECT_EQ(shown("e\u0301e\u0301\x1b[D"), "> e\u0301|e\u0301");
  EXPECT_EQ(shown("012345678901234567x"), "> 012345678901234567\nx|");
  EXPECT_EQ(shown("0123456789012345678\x1b[D"), "> 012345678901234567\n|8");
  EXPECT_EQ(shown("01234567890123456日"), "> 01234567890123456\n日|") << "half a character fits";
  EXPECT_EQ(shown("\x1b[200~one\ntwo\x1b[201~\x1b[A"), "> one|\ntwo");
  EXPECT_EQ(shown("\x1b[200~a\nb\nc\nd\ne\nf\ng\nh\x1b[201~"), "c\nd\ne\nf\ng\nh|") << "more rows than the window";
  history_.add("pe");
  EXPECT_EQ(shown("\x12pe"), "(search 'pe') pe|");
  EXPECT_EQ(shown("\x12px"), "(not found 'px') pe|");
}

TEST_F(Editor, AnotherSizeOfTheWindowIsFollowed) {
  EXPECT_EQ(shown("0123456789abcdefghijklm", 10), "> 01234567\n89abcdefgh\nijklm|");
}

TEST_F(Editor, TheTerminalIsAsBefore) {
  termios before{}, after{};
  ::tcgetattr(slave_, &before);
  entered("abc");
  ::tcgetattr(slave_, &after);
  EXPECT_EQ(before.c_lflag, after.c_lflag);
}

TEST(History, IsKeptForTheUserAlone) {
  const test::TempFolder folder("history");
  const std::string path = folder.path() + "/state/tessera/chat_history";
  const auto mode_of = [](const std::string& p) {
    struct stat s{};
    EXPECT_EQ(::stat(p.c_str(), &s), 0);
    return s.st_mode & 0777U;
  };
  {
    History history;
    history.open(path);
    for (const auto* entry : {"one", "two\nlines", "two\nlines", "\\n \"日\"", ""}) history.add(entry);
  }
  EXPECT_EQ(mode_of(path), 0600U);
  EXPECT_EQ(mode_of(folder.path() + "/state"), 0700U);
  write_file_atomically(path, read_file(path) + "no JSON\n[1]\n");
  History again;
  again.open(path);
  EXPECT_EQ(again.entries(), (std::vector<std::string>{"one", "two\nlines", "\\n \"日\""}));
  EXPECT_EQ(mode_of(path), 0600U) << "whatever it was before";
}

TEST(History, OldEntriesAreForgotten) {
  const test::TempFolder folder("history");
  const std::string path = folder.path() + "/history";
  std::string lines;
  for (std::size_t i = 0; i <= 2 * History::kMost; ++i) lines += "\"" + std::to_string(i) + "\"\n";
  write_file_atomically(path, lines);
  History{}.open(path);
  History again;
  again.open(path);
  EXPECT_EQ(again.entries().size(), History::kMost);
  EXPECT_EQ(again.entries().back(), "2000");
}

TEST(History, AFileThatCannotBeIsSaidOnce) {
  const test::TempFolder folder("history");
  write_file_atomically(folder.path() + "/file", "");
  History history;
  EXPECT_THROW(history.open(folder.path() + "/file/history"), DataError);
  history.add("is kept in memory");
  EXPECT_EQ(history.entries().size(), 1U);
}

}  // namespace
}  // namespace tessera::terminal
