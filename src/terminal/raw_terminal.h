#pragma once
#include <csignal>
#include <map>

namespace tessera::terminal {

/// Keys arrive as they are pressed, without echo, Ctrl-C as a key, and pasted text in brackets, for as long as this
/// lives: until a signal, too. One at a time.
class RawTerminal {
 public:
  explicit RawTerminal(int terminal);
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  std::map<int, struct sigaction> actions_;
};

}  // namespace tessera::terminal
