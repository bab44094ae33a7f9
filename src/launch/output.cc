#include "launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

constexpr std::size_t kKeptLines = 20;
constexpr std::size_t kLongestLine = 64 << 10;  // a line without an end must not fill the memory

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // a closed console must not end the training
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

Descriptor open_log(const std::string& log_dir, int rank, bool is_stdout) {
  const std::string folder = fmt::format("{}/rank_{}", log_dir, rank);
  ensure_writable_folder(folder);
  const std::string path = folder + (is_stdout ? "/stdout.log" : "/stderr.log");
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd.get() < 0) throw CheckpointError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)), path);
  return fd;
}

}  // namespace

RankStream::RankStream(int rank, int console_fd, const OutputOptions& options)
    : rank_(rank), console_fd_(console_fd), child_fd_(console_fd) {
  const bool is_stdout = console_fd == STDOUT_FILENO;
  const bool tee = is_stdout ? options.tee_stdout : options.tee_stderr;
  if (!options.log_dir.empty()) log_ = open_log(options.log_dir, rank, is_stdout);
  if (tee) {
    console_ = Console::kPrefixed;
  } else if (rank == 0) {
    console_ = Console::kRaw;
  }
  if (console_ == Console::kRaw && log_.get() < 0) return;  // inherited: a terminal stays a terminal
  if (console_ == Console::kNothing && is_stdout && log_.get() < 0) {
    null_ = Descriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    child_fd_ = null_.get();
    return;
  }
  pipe_ = make_pipe();
  ::fcntl(pipe_.read.get(), F_SETFL, O_NONBLOCK);
  child_fd_ = pipe_.write.get();
}

void RankStream::close_child_end() {
  pipe_.write.reset();
  null_.reset();
}

bool RankStream::drain() {
  char buffer[16384];
  while (true) {
    const ssize_t n = ::read(pipe_.read.get(), buffer, sizeof(buffer));
    if (n > 0) {
      take(buffer, static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && errno == EAGAIN) {
      return true;
    } else {
      if (!line_.empty()) end_line();
      pipe_.read.reset();
      return false;
    }
  }
}

void RankStream::take(const char* bytes, std::size_t size) {
  if (log_.get() >= 0) write_all(log_.get(), {bytes, size});
  if (console_ == Console::kRaw) write_all(console_fd_, {bytes, size});
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes[i] == '\n' || line_.size() == kLongestLine) end_line();
    if (bytes[i] != '\n') line_ += bytes[i];
  }
}

void RankStream::end_line() {
  if (console_ == Console::kPrefixed) write_all(console_fd_, fmt::format("[rank {}]: {}\n", rank_, line_));
  lines_.push_back(std::move(line_));
  line_.clear();
  if (lines_.size() > kKeptLines) lines_.pop_front();
}

std::vector<std::string> RankStream::last_lines() const {
  if (console_ != Console::kNothing) return {};  // the user has seen them
  return {lines_.begin(), lines_.end()};
}

}  // namespace tessera::launch
