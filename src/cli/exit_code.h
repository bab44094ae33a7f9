#pragma once
// What the program's exit codes mean, and how errors become messages.
#include <functional>
#include <ostream>

namespace tessera::cli {

// clang-format off
enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,           // a check that the command makes did not hold
  kConfigError = 2,       // flags, config files, combinations of them
  kDataError = 3,         // data, weight and tokenizer files
  kCheckpointError = 4,   // folders that are written or read back
  kCommError = 5,         // a lost rank, a timeout
  kInternalError = 70,    // a defect of tessera
  kOutOfMemory = 71,
};
// clang-format on
// 128 + N: ended by signal N (130: Ctrl-C). `launch` passes on the code of the rank that failed first.

/// Runs `body`; an exception becomes one message on `err` and its exit code. Of other libraries' exceptions only the
/// first line is shown (libtorch appends a stack trace). What is wrong with the words of a command, which all ranks of
/// a job have, is said by rank 0 alone.
int run_guarded(const std::function<int()>& body, std::ostream& err);

/// At the end of a program: `code`, or kCheckpointError with a message where std::cout could not be written. A reader
/// who has left wanted no more.
int flush_output(int code, std::ostream& err);

}  // namespace tessera::cli
