#pragma once
// What becomes of the ranks' stdout and stderr.
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "launch/console.h"
#include "launch/process.h"

namespace tessera::launch {

struct OutputOptions {
  bool tee_stdout = false;  // all ranks on the launcher's stdout, with a prefix
  bool tee_stderr = false;
  std::string log_dir;  // LOG_DIR/rank_N/{stdout,stderr}.log; empty: none
  int attempt = 0;      // from 1 on the logs go on, behind a line that says so
};

/// How many descriptors the launcher has for one rank while it starts.
int descriptors_of_rank(const OutputOptions& options);

/// One stream of one rank. Rank 0 passes through unless copies are asked for; of the others the last lines are kept.
class RankStream {
 public:
  /// `console`: the stream of the launcher. CheckpointError where a log file cannot be created.
  RankStream(int rank, Console& console, const OutputOptions& options);

  /// What the child gets as this stream (see Command).
  int child_fd() const { return child_fd_; }
  /// To be called in the launcher once the child has started.
  void close_child_end();
  /// -1 where there is nothing to read.
  int read_fd() const { return pipe_.read.get(); }
  /// Takes some of what is there. False where nothing was; the end of the stream closes it.
  bool drain();
  /// What would be taken now would only be kept for a slow reader.
  bool is_held_up() const { return shows_ != Shows::kNothing && console_.is_behind(); }
  Console& console() { return console_; }
  /// Why its log is not whole: a full disk. 0: it is.
  int lost() const { return lost_; }
  /// The last lines, oldest first.
  std::vector<std::string> last_lines() const;

 private:
  enum class Shows { kNothing, kRaw, kPrefixed };

  void take(std::string_view bytes);
  void end_line(std::string& shown);

  int rank_, child_fd_;
  Console& console_;
  int lost_ = 0;
  Shows shows_ = Shows::kNothing;
  Pipe pipe_;
  Descriptor null_, log_;
  std::string line_;
  std::deque<std::string> lines_;
};

}  // namespace tessera::launch
