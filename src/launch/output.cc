#include "launch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string_view>

#include "base/file.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

constexpr std::size_t kKeptLines = 20;
constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kLongestLine = 64 << 10;  // a line without an end must not fill the memory

/// 0, or errno: a full disk must not end the training.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

/// Logs of a failed attempt are what its user wants to read: the next one goes on behind them.
Descriptor open_log(const OutputOptions& options, int rank, bool is_stdout) {
  const std::string folder = fmt::format("{}/rank_{}", options.log_dir, rank);
  ensure_writable_folder(folder);
  const std::string path = folder + (is_stdout ? "/stdout.log" : "/stderr.log");
  const int how = options.attempt == 0 ? O_TRUNC : O_APPEND;
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666));
  if (fd.get() < 0) throw CheckpointError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)), path);
  if (options.attempt > 0) write_all(fd.get(), fmt::format("\n--- attempt {} ---\n", options.attempt));
  return fd;
}

}  // namespace

int descriptors_of_rank(const OutputOptions& options) {
  constexpr int kPipe = 2, kNull = 1, kLog = 1;
  const bool has_logs = !options.log_dir.empty();
  const int out = options.tee_stdout || has_logs ? kPipe : kNull;
  return out + kPipe + (has_logs ? 2 * kLog : 0);
}

RankStream::RankStream(int rank, Console& console, const OutputOptions& options)
    : rank_(rank), child_fd_(console.fd()), console_(console) {
  const bool is_stdout = console.fd() == STDOUT_FILENO;
  const bool tee = is_stdout ? options.tee_stdout : options.tee_stderr;
  if (!options.log_dir.empty()) log_ = open_log(options, rank, is_stdout);
  if (tee) {
    shows_ = Shows::kPrefixed;
  } else if (rank == 0) {
    shows_ = Shows::kRaw;
  }
  if (shows_ == Shows::kRaw && log_.get() < 0) return;  // inherited: a terminal stays a terminal
  if (shows_ == Shows::kNothing && is_stdout && log_.get() < 0) {
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
  std::array<char, kReadBytes> buffer;
  const ssize_t n = ::read(pipe_.read.get(), buffer.data(), buffer.size());
  if (n > 0) {
    take({buffer.data(), static_cast<std::size_t>(n)});
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  std::string shown;
  if (!line_.empty()) end_line(shown);
  console_.put(shown);
  pipe_.read.reset();
  return false;
}

void RankStream::take(std::string_view bytes) {
  if (const int error = log_.get() >= 0 ? write_all(log_.get(), bytes) : 0; error != 0) lost_ = error;
  if (shows_ == Shows::kRaw) console_.put(bytes);
  std::string shown;
  for (const char c : bytes) {
    if (c == '\n' || line_.size() == kLongestLine) end_line(shown);
    if (c != '\n') line_ += c;
  }
  console_.put(shown);
}

void RankStream::end_line(std::string& shown) {
  if (shows_ == Shows::kPrefixed) shown += fmt::format("[rank {}]: {}\n", rank_, line_);
  lines_.push_back(std::move(line_));
  line_.clear();
  if (lines_.size() > kKeptLines) lines_.pop_front();
}

std::vector<std::string> RankStream::last_lines() const {
  if (shows_ != Shows::kNothing) return {};  // the user has seen them
  return {lines_.begin(), lines_.end()};
}

}  // namespace tessera::launch
