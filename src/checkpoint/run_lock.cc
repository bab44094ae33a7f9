#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

std::string holder_of(int descriptor) {
  char text[400] = {};
  const auto got = ::pread(descriptor, text, sizeof text - 1, 0);
  return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : std::string("another process");
}

/// 0, or the error. A run that was just killed holds the lock until its last process is gone, so it is asked for again
/// for a while.
int lock(int descriptor) {
  constexpr int kTries = 60;
  constexpr std::chrono::milliseconds kPause{50};
  for (int i = 0; ::flock(descriptor, LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EINTR && (errno != EWOULDBLOCK || i == kTries)) return errno;
    std::this_thread::sleep_for(kPause);
  }
  return 0;
}

}  // namespace

RunLock::RunLock(const std::string& output_dir) : output_dir_(output_dir) {
  do {  // who holds the lock of a file that has lost its name holds nothing
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    acquire();
  } while (!name_.loss().empty());
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string text = fmt::format("process {} on {}", ::getpid(), host);
  if (::ftruncate(descriptor_, 0) == 0) (void)!::pwrite(descriptor_, text.data(), text.size(), 0);
}

void RunLock::acquire() {
  ensure_writable_folder(output_dir_);
  const std::string file = output_dir_ + "/.tessera.lock";
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw CheckpointError(fmt::format("cannot create '{}': {}", file, std::strerror(errno)), output_dir_);
  name_ = HeldName(file, descriptor_);
  // Other errors are of a file system without locks: nothing can be promised, nothing is in the way.
  if (lock(descriptor_) != EWOULDBLOCK) return;
  const std::string holder = holder_of(descriptor_);
  ::close(descriptor_);
  throw CheckpointError(fmt::format("'{}' is being written by another run ({}); wait for it, or choose another "
                                    "--output_dir",
                                    output_dir_, holder),
                        output_dir_);
}

bool RunLock::is_lost() const {
  return !name_.loss().empty();
}

void RunLock::check() const {
  const std::string loss = name_.loss();
  if (loss.empty()) return;
  throw CheckpointError(
      fmt::format("the output folder '{0}' was taken away from this run: '{0}/.tessera.lock' {1}. What "
                  "the run writes has no place, and another run may have the folder. Start it again; "
                  "with --resume_from_checkpoint, where a checkpoint is left",
                  output_dir_, loss),
      output_dir_);
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace tessera::checkpoint
