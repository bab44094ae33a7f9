#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "cli/questions.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

/// Keys arrive as they are pressed, without echo, Ctrl-C as a key, for as long as this lives: until a signal, too.
class RawTerminal {
 public:
  explicit RawTerminal(int terminal) {
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
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(terminal_, TCSADRAIN, &raw);
  }
  ~RawTerminal() {
    ::tcsetattr(terminal_, TCSADRAIN, &before_);
    for (const auto& [signal, action] : actions_) ::sigaction(signal, &action, nullptr);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  static void restore_and_end(int signal) {
    ::tcsetattr(terminal_, TCSANOW, &before_);
    ::raise(signal);  // acts as elsewhere when this returns
  }

  static inline int terminal_ = -1;  // of the one menu at a time: a signal finds them here
  static inline termios before_{};
  std::map<int, struct sigaction> actions_;
};

enum class Key { kUp, kDown, kEnter, kInterrupt, kOther };

/// digit: of a key 0 to 9, else -1.
Key read_key(int terminal, int& digit) {
  const auto next = [&] {
    char c = 0;
    return ::read(terminal, &c, 1) == 1 ? c : '\x04';
  };
  const char c = next();
  digit = c >= '0' && c <= '9' ? c - '0' : -1;
  if (c == '\n' || c == '\r') return Key::kEnter;
  if (c == '\x03' || c == '\x04') return Key::kInterrupt;  // Ctrl-C, Ctrl-D, or the terminal is gone
  if (c == 'k') return Key::kUp;
  if (c == 'j') return Key::kDown;
  if (c != '\x1b') return Key::kOther;
  const char kind = next();
  if (kind != '[' && kind != 'O') return Key::kOther;
  const char arrow = next();
  return arrow == 'A' ? Key::kUp : arrow == 'B' ? Key::kDown : Key::kOther;
}

void draw_choices(std::ostream& out, const std::vector<std::string>& choices, std::size_t at) {
  for (std::size_t i = 0; i < choices.size(); ++i)
    out << (i == at ? "\r\x1b[K > \x1b[32m" + choices[i] + "\x1b[0m\n" : "\r\x1b[K   " + choices[i] + "\n");
  out << std::flush;
}

}  // namespace

std::size_t choose_on_terminal(int terminal, std::ostream& out, const std::vector<std::string>& choices,
                               std::size_t proposed) {
  std::size_t at = proposed;
  const std::string back = fmt::format("\x1b[{}A", choices.size());
  bool is_interrupted = false;
  {
    const RawTerminal raw(terminal);
    out << "(arrow keys or a number, then Enter)\n";
    for (draw_choices(out, choices, at);; out << back, draw_choices(out, choices, at)) {
      int digit = -1;
      const Key key = read_key(terminal, digit);
      if (key == Key::kEnter) break;
      is_interrupted = key == Key::kInterrupt;
      if (is_interrupted) break;
      if (key == Key::kUp && at > 0) --at;
      if (key == Key::kDown && at + 1 < choices.size()) ++at;
      if (digit >= 0 && static_cast<std::size_t>(digit) < choices.size()) at = static_cast<std::size_t>(digit);
    }
  }
  if (is_interrupted) {
    ::signal(SIGINT, SIG_DFL);  // also where whoever started the program ignores it: it was typed here
    ::raise(SIGINT);
  }
  out << fmt::format("\x1b[{}A\x1b[J  {}\n", choices.size() + 1, choices[at])
      << std::flush;  // the menu makes room for the choice
  return at;
}

}  // namespace tessera::cli
