#include "launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "base/open_files.h"
#include "launch/limits.h"
#include "tessera/base/error.h"

extern char** environ;

namespace tessera::launch {
namespace {

/// "NAME=value" for this process's environment with `added` on top.
std::vector<std::string> merged_environment(const config::Environment& added) {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : added) all[name] = value;
  std::vector<std::string> out;
  for (const auto& [name, value] : all) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

bool is_executable_file(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

/// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const Command& command, char** args, char** env, pid_t parent, int report) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
  if (!take_place(command)) ::_exit(127);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A shell ignores SIGINT in what it puts in the background; what the launcher passes on must act.
  for (const int s : {SIGINT, SIGTERM}) ::signal(s, SIG_DFL);
  const int null = ::open("/dev/null", O_RDWR);
  if (null >= 0) ::dup2(null, 0);
  if (null > 2) ::close(null);
  for (const int fd : command.inherited) ::fcntl(fd, F_SETFD, 0);
  if (command.inherited.empty()) restore_open_files();  // else it is our own program, and has many
  ::execve(command.program.c_str(), args, env);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof(error));
  ::_exit(127);
}

}  // namespace

bool take_place(const Command& command) {
  ::setpgid(0, 0);
  const pid_t self = ::getpid();
  if (command.announce_fd >= 0 && ::write(command.announce_fd, &self, sizeof(self)) != sizeof(self)) return false;
  if (!command.cpus.empty()) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (const int cpu : command.cpus) CPU_SET(cpu, &mask);
    ::sched_setaffinity(0, sizeof(mask), &mask);
  }
  if (command.stdout_fd != 1) ::dup2(command.stdout_fd, 1);
  if (command.stderr_fd != 2) ::dup2(command.stderr_fd, 2);
  return true;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("cannot create a pipe: {}", std::strerror(errno)));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return is_executable_file(name) ? name : "";
  const char* path = std::getenv("PATH");
  std::string folders = path != nullptr ? path : "/usr/bin:/bin";
  folders += ':';
  for (std::size_t begin = 0, end; (end = folders.find(':', begin)) != std::string::npos; begin = end + 1) {
    const std::string folder = folders.substr(begin, end - begin);
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable_file(candidate)) return candidate;
  }
  return {};
}

pid_t start(const Command& command) {
  std::vector<std::string> args = command.args, env = merged_environment(command.environment);
  const std::vector<char*> arg_pointers = pointers(args), env_pointers = pointers(env);
  Pipe report = make_pipe();  // carries errno when exec fails, and just closes when it succeeds
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error("cannot start a process: " + why_no_process(errno));
  if (pid == 0) {
    become(command, const_cast<char**>(arg_pointers.data()), const_cast<char**>(env_pointers.data()), parent,
           report.write.get());
  }
  ::setpgid(pid, pid);  // both sides set it, so that neither runs ahead
  report.write.reset();
  int error = 0;
  ssize_t n = 0;
  while ((n = ::read(report.read.get(), &error, sizeof(error))) < 0 && errno == EINTR) continue;
  if (n == sizeof(error)) {
    ::waitpid(pid, nullptr, 0);
    throw ConfigError(fmt::format("cannot start '{}': {}", command.program, std::strerror(error)));
  }
  return pid;
}

}  // namespace tessera::launch
