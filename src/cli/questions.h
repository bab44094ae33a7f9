#pragma once
// Questions on a terminal (choices by arrow keys), or read as lines from a pipe (choices by number or name).
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "base/line_reader.h"

namespace tessera::cli {

/// Each shows what is proposed, which an empty answer takes; an answer that is none is asked for again. ConfigError
/// when the input ends before the answer.
class Questions {
 public:
  /// Choices are a menu where `input` and standard output are terminals.
  Questions(int input, std::ostream& out);

  std::size_t choose(const std::string& question, const std::vector<std::string>& choices, std::size_t proposed);
  bool yes_no(const std::string& question, bool proposed);
  std::int64_t number(const std::string& question, std::int64_t proposed, std::int64_t lowest,
                      std::int64_t highest = std::numeric_limits<int>::max());
  /// proposed empty: something must be answered.
  std::string text(const std::string& question, const std::string& proposed);

 private:
  std::string ask(const std::string& prompt);

  int input_;
  std::ostream& out_;
  bool is_terminal_;
  LineReader lines_;
};

/// A menu: up and down (or k and j), digits, Enter. Returns the chosen place. The terminal is as before when it
/// returns; Ctrl-C ends the process as it does elsewhere.
std::size_t choose_on_terminal(int input, std::ostream& out, const std::vector<std::string>& choices,
                               std::size_t proposed);

}  // namespace tessera::cli
