#pragma once
// Runs the ranks to their end: streams, signals, and the end of all when one fails.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "launch/output.h"
#include "launch/process.h"

namespace tessera::launch {

struct SupervisorOptions {
  OutputOptions output;
  int first_rank = 0;  // what the first command's rank is called
  /// After SIGTERM to the other ranks of a failed one, and after a forwarded SIGINT, SIGTERM or SIGHUP (ranks may save
  /// their state first): then SIGKILL.
  std::chrono::milliseconds failure_grace{5'000}, signal_grace{30'000};
};

struct Outcome {
  int exit_code = 0;                    // of the first rank that failed; 128 + signal
  int failed_rank = -1;                 // -1: none
  int forwarded_signal = 0;             // the user's; exit_code is then 128 + it
  std::vector<std::string> last_lines;  // of the failed rank's stderr, where the user has not seen them
};

/// commands[r] starts rank first_rank + r (its stream descriptors are set here). Returns when every rank and what it
/// started has ended. SIGINT, SIGTERM and SIGHUP are taken over for the duration; the second SIGINT ends the ranks at
/// once. `say` gets notices. Single-threaded callers only (it forks).
Outcome supervise(std::vector<Command> commands, const SupervisorOptions& options,
                  const std::function<void(const std::string&)>& say);

/// "exit code 3", "signal 9 (Killed)".
std::string describe_exit(int exit_code);

}  // namespace tessera::launch
