#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace tessera::test {

/// The program on a terminal of its own.
class OnTerminal {
 public:
  explicit OnTerminal(const std::vector<std::string>& args) {
    pid_ = ::forkpty(&master_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    for (const int s : {SIGINT, SIGHUP}) ::signal(s, SIG_DFL);  // whoever runs the tests in the background ignores them
    std::vector<char*> words = {const_cast<char*>(TESSERA_BINARY)};
    for (const auto& arg : args) words.push_back(const_cast<char*>(arg.c_str()));
    words.push_back(nullptr);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ~OnTerminal() { ::close(master_); }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  /// Types `keys` once the screen shows `text` behind what was seen before.
  void answer(const std::string& text, const std::string& keys) {
    wait_for(text);
    ASSERT_EQ(::write(master_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void wait_for(const std::string& text) {
    while (screen_.find(text, seen_) == std::string::npos) {
      pollfd fd{master_, POLLIN, 0};
      char buffer[4096];
      ASSERT_GT(::poll(&fd, 1, 20'000), 0) << "waited for '" << text << "'\n" << screen_;
      const ssize_t n = ::read(master_, buffer, sizeof buffer);
      ASSERT_GT(n, 0) << "ended before '" << text << "'\n" << screen_;
      screen_.append(buffer, static_cast<std::size_t>(n));
    }
    seen_ = screen_.find(text, seen_) + text.size();
  }
  void signal(int number) const { ::kill(pid_, number); }
  /// Whether the terminal shows what is typed.
  bool echoes() const {
    termios now{};
    return ::tcgetattr(master_, &now) == 0 && (now.c_lflag & ECHO) != 0;
  }
  /// Of the program's end, which is awaited for 20 seconds.
  int wait_status() const {
    int status = 0;
    for (int i = 0; i < 2000; ++i, ::usleep(10'000))
      if (::waitpid(pid_, &status, WNOHANG) != 0) return status;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
    return status;
  }

 private:
  int master_ = -1;
  pid_t pid_ = -1;
  std::string screen_;
  std::size_t seen_ = 0;
};

}  // namespace tessera::test
