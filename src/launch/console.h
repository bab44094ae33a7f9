#pragma once
// The launcher's own stdout and stderr, which somebody may read slowly or not at all. Nothing here waits for the
// reader.
#include <poll.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace tessera::launch {

/// Of errno: the disk takes no more.
bool is_full(int error);
/// Whether a line can be written without waiting.
bool has_room(int fd);

class Console {
 public:
  /// fd: 1 or 2.
  explicit Console(int fd);

  int fd() const { return fd_; }
  /// Writes what there is room for and keeps the rest, up to 8 MiB; what is more is lost.
  void put(std::string_view bytes);
  /// Writes what there is room for.
  void flush();
  bool has_pending() const { return !pending_.empty(); }
  /// The reader is so slow that the ranks had better wait.
  bool is_behind() const;
  /// For poll(): ready when flush() has something to do.
  pollfd waiting() const { return {has_pending() ? target() : -1, POLLOUT, 0}; }
  /// Why bytes are lost where somebody wants them: a full disk. 0: none are, or nobody reads any more.
  int lost() const { return lost_; }
  /// Nobody reads any more: drops what is kept and what comes.
  void give_up();

 private:
  int target() const { return own_.get() >= 0 ? own_.get() : fd_; }

  int fd_;
  Descriptor own_;  // the same pipe or terminal, opened anew: O_NONBLOCK on fd_ would be on other processes' too
  bool given_up_ = false;
  int lost_ = 0;
  std::string pending_;
};

}  // namespace tessera::launch
