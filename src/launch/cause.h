#pragma once
// Which rank's end was the cause, where several end because one did.
#include <optional>
#include <string>
#include <vector>

namespace tessera::launch {

/// How a process ended.
struct Ending {
  int rank = -1;
  int exit_code = 0;  // 128 + signal
  bool by_signal = false;

  bool lost_a_peer() const;  // it says that another rank has gone
};

/// "exit code 3", "signal 15 (SIGTERM)".
std::string describe(const Ending& ending);

/// Follows the order in which ranks ended badly. Two kinds of ends are consequences, and give way to the end of a rank
/// that comes later: exit codes 128 + n, with which a program says that a signal stopped something else, and that of
/// tasks that have lost another rank.
class FirstCause {
 public:
  /// Ranks that ended since the last call, in an order that nobody knows.
  void add(std::vector<Ending> endings);
  const std::optional<Ending>& found() const { return found_; }
  /// False where what was found may be a consequence of an end that is still to come.
  bool is_certain() const;
  void forget() { found_.reset(); }

 private:
  std::optional<Ending> found_;
};

}  // namespace tessera::launch
