#include "launch/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace tessera::launch {
namespace {

constexpr std::size_t kBehind = 64 << 10, kMostKept = 8 << 20;

/// Not of files, whose place is with the descriptor, nor of sockets, which cannot be opened.
Descriptor open_anew(int fd) {
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) return Descriptor();
  return Descriptor(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

/// What a pipe takes as a whole, up to the end of a line: other processes write there, too.
std::string_view next_part(std::string_view bytes) {
  if (bytes.size() <= PIPE_BUF) return bytes;
  const std::size_t end = bytes.substr(0, PIPE_BUF).rfind('\n');
  return bytes.substr(0, end == std::string_view::npos ? PIPE_BUF : end + 1);
}

}  // namespace

bool is_full(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

bool has_room(int fd) {
  pollfd room{fd, POLLOUT, 0};
  return ::poll(&room, 1, 0) > 0;
}

Console::Console(int fd) : fd_(fd), own_(open_anew(fd)) {}

void Console::put(std::string_view bytes) {
  if (given_up_ || bytes.size() > kMostKept - std::min(kMostKept, pending_.size())) return;
  pending_ += bytes;
  flush();
}

void Console::flush() {
  std::string_view left = pending_;
  while (!left.empty() && has_room(target())) {
    const std::string_view part = next_part(left);
    const ssize_t n = ::write(target(), part.data(), part.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n < 0) {  // neither a closed console nor a full disk must end the training
      if (is_full(errno)) lost_ = errno;
      return give_up();
    }
    left.remove_prefix(static_cast<std::size_t>(n));
  }
  pending_.erase(0, pending_.size() - left.size());
}

bool Console::is_behind() const {
  return pending_.size() >= kBehind;
}

void Console::give_up() {
  given_up_ = true;
  pending_.clear();
}

}  // namespace tessera::launch
