#include "support/loaded_programs.h"

#include <ATen/Parallel.h>
#include <signal.h>
#include <stdio_ext.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "support/copied_process.h"
#include "worker/tasks.h"

// Their main functions.
#define main tessera_main
#include "cli/main.cc"
#undef main
#define main worker_main
#include "worker/main.cc"
#undef main

namespace {

/// Names, or how they begin, of what is looked at once: by libraries while they load, by the programs when first asked.
/// (OMP_NUM_THREADS can be told later.)
constexpr const char* kLookedAtOnce[] = {"LD_",
                                         "GOMP_",
                                         "OMP_",
                                         "KMP_",
                                         "MKL_",
                                         "TORCH_",
                                         "PYTORCH_",
                                         "ATEN_",
                                         "MALLOC_",
                                         "GLIBC_TUNABLES",
                                         "TESSERA_CPU_LEVEL",
                                         "TESSERA_LOG_LEVEL"};
constexpr const char* kThreads = "OMP_NUM_THREADS";

std::map<std::string, std::string> looked_at(char* const environment[]) {
  std::map<std::string, std::string> found;
  for (; *environment != nullptr; ++environment) {
    const std::string entry = *environment, name = entry.substr(0, entry.find('='));
    for (const char* start : kLookedAtOnce) {
      if (name.starts_with(start) && name != kThreads) found[name] = entry;
    }
  }
  return found;
}

const std::map<std::string, std::string> loaded_with = looked_at(environ);

void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    ::signal(signal, SIG_DFL);
  }
}

/// argv, envp: stay where they are, as their owners never go on.
[[noreturn]] void start_over(int (*program)(int, char**), const std::string& path, char* const argv[],
                             char* const envp[]) noexcept {
  tessera::test::close_what_exec_closes();
  reset_signals();
  ::prctl(PR_SET_NAME, path.substr(path.rfind('/') + 1).c_str());
  for (std::FILE* stream : {stdin, stdout, stderr}) ::__fpurge(stream);
  environ = const_cast<char**>(envp);
  if (const char* threads = std::getenv(kThreads)) at::set_num_threads(std::max(1, std::atoi(threads)));
  int count = 0;
  while (argv[count] != nullptr) ++count;
  const int code = program(count, const_cast<char**>(argv));
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace

// Instead of the C library's, in this program.
extern "C" int execve(const char* path, char* const argv[], char* const envp[]) noexcept {
  static const std::string launcher = TESSERA_BINARY, worker = launcher + "-worker";
  const bool is_worker = path == worker;
  if ((is_worker || path == launcher) && !tessera::test::FromDisk::is_wanted() && ::getpid() == ::gettid() &&
      looked_at(envp) == loaded_with && !tessera::test::has_other_threads(::getppid())) {
    start_over(is_worker ? worker_main : tessera_main, path, argv, envp);
  }
  return static_cast<int>(::syscall(SYS_execve, path, argv, envp));
}

extern "C" int execv(const char* path, char* const argv[]) noexcept {
  return ::execve(path, argv, environ);
}
