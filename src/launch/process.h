#pragma once
// One child process: started in its own process group, bound to its cores, ended with its parent.
#include <sys/types.h>

#include <string>
#include <vector>

#include "config/accelerate.h"

namespace tessera::launch {

struct Command {
  std::string program;              // a path, already looked up
  std::vector<std::string> args;    // with args[0]
  config::Environment environment;  // added to this process's
  std::vector<int> cpus;            // empty: not bound
  int stdout_fd = 1;                // becomes its stdout; 1: inherited
  int stderr_fd = 2;
  int announce_fd = -1;  // the child writes its pid_t here before it becomes the program; -1: nowhere
};

/// Starts it; returns its pid, which is also its process group. stdin is /dev/null (a background group cannot read a
/// terminal). When this process dies in any way, the child gets SIGKILL. ConfigError names a program that cannot be
/// started and why.
pid_t start(const Command& command);

/// The path of a program as the shell would find it; "" where there is none that may be executed.
std::string find_program(const std::string& name);

/// Owns a descriptor.
class Fd {
 public:
  explicit Fd(int fd = -1) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Fd() { reset(-1); }
  int get() const noexcept { return fd_; }
  int release() noexcept;
  void reset(int fd) noexcept;

 private:
  int fd_;
};

/// Both ends close on exec.
struct Pipe {
  Fd read, write;
};
Pipe make_pipe();

}  // namespace tessera::launch
