#pragma once
// Runs the ranks to their end: streams, signals, and the end of all when one fails.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/cause.h"
#include "launch/machines.h"
#include "launch/output.h"
#include "launch/process.h"

namespace tessera::launch {

struct SupervisorOptions {
  OutputOptions output;
  int first_rank = 0;       // what the first command's rank is called
  bool fork_ranks = false;  // the commands are one program, which calls become_rank() (fork_server.h)
  /// After SIGTERM to the other ranks of a failed one: then SIGKILL.
  std::chrono::milliseconds failure_grace{5'000};
  /// The same after a forwarded SIGINT, SIGTERM or SIGHUP. Nothing: as long as the ranks take; a step and a checkpoint
  /// have no length that would be known here.
  std::optional<std::chrono::milliseconds> signal_grace;
  /// Where ranks start again on several machines: another may ask for the end of those here. Null: nobody does.
  Machines* others = nullptr;
};

struct Outcome {
  int exit_code = 0;                    // 128 + the user's signal; else of the rank that failed first
  int forwarded_signal = 0;             // the user's first
  bool was_called = false;              // ranks were ended because another machine's are to start again
  std::optional<Ending> failure;        // the first; also of ranks that did not end well after a forwarded signal
  std::string lost;                     // output that a full disk did not take; empty: none
  std::vector<std::string> last_lines;  // of the failed rank's stderr, where the user has not seen them
};

/// commands[r] starts rank first_rank + r (its stream descriptors are set here). Returns when every rank and what it
/// started has ended. SIGINT, SIGTERM and SIGHUP are passed on to the ranks; a SIGINT after the first signal ends the
/// ranks at once. `say` gets notices. Single-threaded callers only (it forks).
Outcome supervise(std::vector<Command> commands, const SupervisorOptions& options,
                  const std::function<void(const std::string&)>& say);

}  // namespace tessera::launch
