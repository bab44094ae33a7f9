#include "terminal/raw_terminal.h"

#include <termios.h>
#include <unistd.h>

#include <string_view>

namespace tessera::terminal {
namespace {

int terminal_ = -1;  // of the one that lives: a signal finds them here
termios before_{};

void tell(std::string_view mode) {
  [[maybe_unused]] const auto n = ::write(terminal_, mode.data(), mode.size());  // opened for reading only: without it
}

void restore(int when) {
  tell("\x1b[?2004l");
  ::tcsetattr(terminal_, when, &before_);
}

void restore_and_end(int signal) {
  restore(TCSANOW);
  ::raise(signal);  // acts as elsewhere when this returns
}

}  // namespace

RawTerminal::RawTerminal(int terminal) {
  terminal_ = terminal;
  ::tcgetattr(terminal_, &before_);
  struct sigaction end{};
  end.sa_handler = restore_and_end;
  end.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int s : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    ::sigaction(s, nullptr, &actions_[s]);
    if (actions_[s].sa_handler != SIG_IGN) ::sigaction(s, &end, nullptr);
  }
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(terminal_, TCSADRAIN, &raw);
  tell("\x1b[?2004h");
}

RawTerminal::~RawTerminal() {
  restore(TCSADRAIN);
  for (const auto& [signal, action] : actions_) ::sigaction(signal, &action, nullptr);
}

}  // namespace tessera::terminal
