#pragma once
// Runs a program as a user would, with its stdout and stderr taken apart.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::test {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct Finished {
  int exit_code = -1;  // 128 + signal
  std::string out, err;
};

class Subprocess {
 public:
  explicit Subprocess(const std::vector<std::string>& command, const Variables& environment = {}) {
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], 1);
      ::dup2(err[1], 2);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      std::vector<char*> args;
      for (const std::string& word : command) args.push_back(const_cast<char*>(word.c_str()));
      args.push_back(nullptr);
      ::execv(args[0], args.data());
      ::_exit(127);
    }
    ::close(out[1]);
    ::close(err[1]);
    out_fd_ = out[0];
    err_fd_ = err[0];
  }
  ~Subprocess() {
    if (pid_ > 0) finish(std::chrono::seconds(0));
    if (out_fd_ >= 0) ::close(out_fd_);
    if (err_fd_ >= 0) ::close(err_fd_);
  }
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const { return pid_; }
  /// False once it has ended, reaped or not.
  bool running() {
    siginfo_t info{};
    read_some(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));  // it must not wait for the pipe
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  void signal(int number) const { ::kill(pid_, number); }

  /// As a terminal that goes: the process finds nobody at the other end of its output.
  void stop_reading() {
    ::close(std::exchange(out_fd_, -1));
    ::close(std::exchange(err_fd_, -1));
    out_open_ = err_open_ = false;
  }

  /// Until stdout holds `text` (true) or the time is over.
  bool wait_for_output(const std::string& text, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (result_.out.find(text) == std::string::npos) {
      if (!read_some(end)) return result_.out.find(text) != std::string::npos;
    }
    return true;
  }

  /// Reads to the end of both streams, which whoever holds them decides, and reaps. Kills after `timeout`.
  Finished finish(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (read_some(end)) continue;
    int status = 0;
    pid_t reaped = 0;
    while ((reaped = ::waitpid(pid_, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (reaped == 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    result_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result_;
  }

 private:
  /// False at the end of both streams or of the time.
  bool read_some(std::chrono::steady_clock::time_point end) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd fds[2] = {{out_open_ ? out_fd_ : -1, POLLIN, 0}, {err_open_ ? err_fd_ : -1, POLLIN, 0}};
    if (left <= 0 || (!out_open_ && !err_open_)) return false;
    if (::poll(fds, 2, static_cast<int>(left)) <= 0) return false;
    char buffer[4096];
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      const ssize_t n = ::read(fds[i].fd, buffer, sizeof(buffer));
      if (n > 0) {
        (i == 0 ? result_.out : result_.err).append(buffer, static_cast<std::size_t>(n));
      } else {
        (i == 0 ? out_open_ : err_open_) = false;
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  int out_fd_ = -1, err_fd_ = -1;
  bool out_open_ = true, err_open_ = true;
  Finished result_;
};

inline Finished run(const std::vector<std::string>& command, const Variables& environment = {}) {
  return Subprocess(command, environment).finish();
}

}  // namespace tessera::test
