#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "cli/questions.h"
#include "terminal/keys.h"
#include "terminal/raw_terminal.h"

namespace tessera::cli {
namespace {

using terminal::KeyKind;

void draw_choices(std::ostream& out, const std::vector<std::string>& choices, std::size_t at) {
  for (std::size_t i = 0; i < choices.size(); ++i)
    out << (i == at ? "\r\x1b[K > \x1b[32m" + choices[i] + "\x1b[0m\n" : "\r\x1b[K   " + choices[i] + "\n");
  out << std::flush;
}

}  // namespace

std::size_t choose_on_terminal(int input, std::ostream& out, const std::vector<std::string>& choices,
                               std::size_t proposed) {
  std::size_t at = proposed;
  const std::string back = fmt::format("\x1b[{}A", choices.size());
  bool is_interrupted = false;
  {
    const terminal::RawTerminal raw(input);
    out << "(arrow keys or a number, then Enter)\n";
    for (draw_choices(out, choices, at);; out << back, draw_choices(out, choices, at)) {
      const auto [key, text] = terminal::read_key(input);
      if (key == KeyKind::kEnter) break;
      is_interrupted = key == KeyKind::kInterrupt || key == KeyKind::kEndOfInput || key == KeyKind::kGone;
      if (is_interrupted) break;
      if ((key == KeyKind::kUp || text == "k") && at > 0) --at;
      if ((key == KeyKind::kDown || text == "j") && at + 1 < choices.size()) ++at;
      for (std::size_t i = 0; i < std::min<std::size_t>(choices.size(), 10); ++i)
        if (text == std::to_string(i)) at = i;
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
