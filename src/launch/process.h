#pragma once
// One child process: started in its own process group, bound to its cores, ended with its parent.
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/descriptor.h"
#include "config/accelerate.h"

namespace tessera::launch {

struct Command {
  std::string program;              // a path, already looked up
  std::vector<std::string> args;    // with args[0]
  config::Environment environment;  // added to this process's
  std::vector<int> cpus;            // empty: not bound
  int stdout_fd = 1;                // becomes its stdout; 1: inherited
  int stderr_fd = 2;
  int announce_fd = -1;             // the child writes its pid_t here before it becomes the program; -1: nowhere
  std::vector<int> inherited = {};  // descriptors that stay open in the program
};

/// Starts it; returns its pid, which is also its process group. stdin is /dev/null (a background group cannot read a
/// terminal). When this process dies in any way, the child gets SIGKILL. ConfigError names a program that cannot be
/// started and why.
pid_t start(const Command& command);

/// What the new process itself does, whether it becomes another program or goes on: its process group, its pid to
/// announce_fd, cores, stdout and stderr. Only async-signal-safe calls. False where nobody hears the pid.
bool take_place(const Command& command);

/// The path of a program as the shell would find it; "" where there is none that may be executed.
std::string find_program(const std::string& name);

/// Both ends close on exec.
struct Pipe {
  Descriptor read, write;
};
Pipe make_pipe();

}  // namespace tessera::launch
