#pragma once
// A line (or several) typed at a terminal, with the keys of readline, zsh and others.
#include <string>
#include <string_view>

#include "terminal/history.h"
#include "terminal/keys.h"
#include "terminal/typed_text.h"

namespace tessera::terminal {

struct Typed {
  enum class How {
    kEntered,
    kInterrupted,  // Ctrl-C in an empty line; elsewhere it empties the line
    kEnded,        // Ctrl-D in an empty line, or the terminal is gone
  };
  How how = How::kEnded;
  std::string text;  // may hold ends of lines: what was pasted is one text
};

class LineEditor {
 public:
  /// terminal: keys come from it; screen: a descriptor of the same one to write to.
  LineEditor(int terminal, int screen, const History& history)
      : terminal_(terminal), screen_(screen), history_(history) {}

  /// The terminal is as before when it returns, the cursor at the begin of a line.
  Typed read(std::string_view prompt);

 private:
  /// Draws before it waits.
  Key next_key(std::string_view prompt);
  /// In the history, by what is typed; the key that ended it, if it means something behind it.
  Key search();
  void obey(const Key& key);
  void show_entry(std::size_t place);
  void cut(std::size_t place);
  /// whole: also what a window has no room for.
  void draw(std::string_view prompt, bool whole = false);
  void finish(std::string_view prompt, std::string_view end);

  int terminal_, screen_;
  const History& history_;
  TypedText typed_;
  std::size_t place_ = 0;  // in the history; its size: what is typed now
  std::string draft_;      // what was typed before an entry was shown
  std::string taken_;      // what was cut last
  Layout drawn_;
  std::size_t first_row_ = 0;  // of drawn_ that the window shows
};

}  // namespace tessera::terminal
