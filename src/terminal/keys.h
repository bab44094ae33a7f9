#pragma once
// What is typed at a raw terminal.
#include <string>

namespace tessera::terminal {

enum class KeyKind {
  kText,  // a character, or what was pasted
  kEnter,
  kNewline,  // Alt-Enter
  kLeft,
  kRight,
  kUp,
  kDown,
  kWordLeft,
  kWordRight,
  kHome,
  kEnd,
  kBackspace,
  kDelete,
  kCutToBegin,
  kCutToEnd,
  kCutWordLeft,
  kCutWordRight,
  kCutSpaced,  // Ctrl-W: back to white space
  kYank,
  kSearch,
  kCancel,
  kClearScreen,
  kSuspend,
  kInterrupt,
  kEndOfInput,  // Ctrl-D
  kGone,        // the terminal
  kOther,
};

struct Key {
  KeyKind kind = KeyKind::kOther;
  std::string text;  // of kText: UTF-8 without control characters but ends of lines and tabs
};

/// Waits for the next key. Nothing behind it is read.
Key read_key(int terminal);

}  // namespace tessera::terminal
