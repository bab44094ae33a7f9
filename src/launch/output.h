#pragma once
// What becomes of the ranks' stdout and stderr.
#include <deque>
#include <string>
#include <vector>

#include "launch/process.h"

namespace tessera::launch {

struct OutputOptions {
  bool tee_stdout = false;  // all ranks on the launcher's stdout, with a prefix
  bool tee_stderr = false;
  std::string log_dir;  // LOG_DIR/rank_N/{stdout,stderr}.log; empty: none
};

/// One stream of one rank. Rank 0 passes through unless copies are asked for; of the others the last lines are kept.
class RankStream {
 public:
  /// `console_fd`: 1 or 2, the launcher's own. CheckpointError where a log file cannot be created.
  RankStream(int rank, int console_fd, const OutputOptions& options);

  /// What the child gets as this stream (see Command).
  int child_fd() const { return child_fd_; }
  /// To be called in the launcher once the child has started.
  void close_child_end();
  /// -1 where there is nothing to read.
  int read_fd() const { return pipe_.read.get(); }
  /// Takes what is there. False at the end of the stream, which closes it.
  bool drain();
  /// The last lines, oldest first.
  std::vector<std::string> last_lines() const;

 private:
  enum class Console { kNothing, kRaw, kPrefixed };

  void take(const char* bytes, std::size_t size);
  void end_line();

  int rank_, console_fd_, child_fd_;
  Console console_ = Console::kNothing;
  Pipe pipe_;
  Descriptor null_, log_;
  std::string line_;
  std::deque<std::string> lines_;
};

}  // namespace tessera::launch
