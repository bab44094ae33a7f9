#include "launch/fork_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "launch/limits.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

/// "REQUEST REPLY GATE OPENER": descriptors that the server inherits; GATE is the reading end of a pipe, OPENER the
/// other.
constexpr const char* kVariable = "TESSERA_FORK_SERVER";

/// What each rank is told, as texts that end with 0.
class Fields {
 public:
  Fields() = default;
  explicit Fields(std::string bytes) : bytes_(std::move(bytes)) {}
  void put(const std::string& text) { bytes_.append(text.c_str(), text.size() + 1); }
  void put(std::int64_t number) { put(std::to_string(number)); }
  std::string text() {
    const std::size_t end = bytes_.find('\0', at_);
    if (end == std::string::npos) throw Error("the launcher's request is cut");
    const std::string found = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return found;
  }
  int number() { return std::stoi(text()); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

struct Request {
  pid_t launcher = -1, server = -1;
  std::vector<Command> ranks;  // without program and args
};

std::string to_bytes(const std::vector<Command>& commands) {
  Fields out;
  out.put(::getpid());
  out.put(static_cast<std::int64_t>(commands.size()));
  for (const Command& command : commands) {
    for (const int fd : {command.stdout_fd, command.stderr_fd, command.announce_fd}) out.put(fd);
    out.put(static_cast<std::int64_t>(command.cpus.size()));
    for (const int cpu : command.cpus) out.put(cpu);
    out.put(static_cast<std::int64_t>(command.environment.size()));
    for (const auto& [name, value] : command.environment) out.put(name), out.put(value);
  }
  return out.bytes();
}

Request to_request(std::string bytes) {
  Fields in(std::move(bytes));
  Request out;
  out.launcher = in.number();
  out.server = ::getpid();
  out.ranks.resize(static_cast<std::size_t>(in.number()));
  for (Command& command : out.ranks) {
    for (int* fd : {&command.stdout_fd, &command.stderr_fd, &command.announce_fd}) *fd = in.number();
    for (int left = in.number(); left > 0; --left) command.cpus.push_back(in.number());
    for (int left = in.number(); left > 0; --left) {
      std::string name = in.text();
      command.environment.emplace_back(std::move(name), in.text());
    }
  }
  return out;
}

Descriptor file_of(const std::string& bytes) {
  Descriptor fd(::memfd_create("tessera-ranks", MFD_CLOEXEC));
  if (fd.get() < 0) throw Error(fmt::format("cannot start the ranks: memfd_create: {}", std::strerror(errno)));
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::pwrite(fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n <= 0) throw Error(fmt::format("cannot start the ranks: {}", std::strerror(errno)));
    done += static_cast<std::size_t>(n);
  }
  return fd;
}

std::string bytes_of(int fd) {
  std::string out;
  std::array<char, 65536> part;
  ssize_t n = 0;
  while ((n = ::pread(fd, part.data(), part.size(), static_cast<off_t>(out.size()))) > 0) {
    out.append(part.data(), static_cast<std::size_t>(n));
  }
  return out;
}

/// As start() leaves a process. False where the launcher or the server has died meanwhile.
bool settle(const Request& request, const Command& own, int gate) {
  if (!take_place(own)) return false;
  for (const Command& rank : request.ranks) {
    for (const int fd : {rank.stdout_fd, rank.stderr_fd, rank.announce_fd}) {
      if (fd > 2) ::close(fd);
    }
  }
  for (const auto& [name, value] : own.environment) ::setenv(name.c_str(), value.c_str(), 1);
  // The server opens the gate when all ranks are there, and ends: then this is the launcher's child, and ends with it.
  char open = 0;
  ssize_t n = 0;
  while ((n = ::read(gate, &open, 1)) < 0 && errno == EINTR) continue;
  ::close(gate);
  if (n != 1) return false;
  while (::getppid() == request.server) ::usleep(50);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ::getppid() == request.launcher;
}

[[noreturn]] void give_up(const char* what, const std::vector<pid_t>& started) {
  std::fprintf(stderr, "tessera error: cannot start the ranks: %s after %zu of them: %s\n", what, started.size(),
               why_no_process(errno).c_str());
  for (const pid_t rank : started) ::kill(rank, SIGKILL);
  ::_exit(1);
}

}  // namespace

ForkServer::ForkServer(const std::vector<Command>& commands) : expected_(commands.size()) {
  const Descriptor request = file_of(to_bytes(commands));
  Pipe reply = make_pipe(), gate = make_pipe();
  Command server = commands.at(0);
  server.cpus.clear();
  server.announce_fd = -1;  // it ends with this process, and its ranks announce themselves
  server.inherited = {request.get(), reply.write.get(), gate.read.get(), gate.write.get()};
  for (const Command& command : commands) {
    for (const int fd : {command.stdout_fd, command.stderr_fd, command.announce_fd}) {
      if (fd > 2) server.inherited.push_back(fd);
    }
  }
  server.environment.emplace_back(
      kVariable, fmt::format("{} {} {} {}", request.get(), reply.write.get(), gate.read.get(), gate.write.get()));
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_ = start(server);
  reply_ = std::move(reply.read);
}

ForkServer::~ForkServer() {
  end();
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

void ForkServer::end() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

bool ForkServer::drain() {
  pid_t rank = -1;
  const ssize_t n = ::read(reply_.get(), &rank, sizeof(rank));
  if (n == sizeof(rank)) ranks_.push_back(rank);
  if (n > 0 || (n < 0 && errno == EINTR)) return false;
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
  if (status_ == 0 && ranks_.size() == expected_) return true;
  for (const pid_t unused : ranks_) {  // it was ended after it had opened the gate
    ::kill(-unused, SIGKILL);
    ::waitpid(unused, nullptr, 0);
  }
  ranks_.clear();
  return true;
}

void become_rank() {
  const char* given = std::getenv(kVariable);
  if (given == nullptr) return;
  int from = -1, reply = -1, gate = -1, open_gate = -1;
  if (std::sscanf(given, "%d %d %d %d", &from, &reply, &gate, &open_gate) != 4) return;
  const Request request = to_request(bytes_of(from));
  ::unsetenv(kVariable);
  ::close(from);
  std::vector<pid_t> started;
  for (const Command& rank : request.ranks) {
    const pid_t pid = ::fork();
    if (pid < 0) give_up("fork", started);
    if (pid == 0) {
      ::close(reply);
      ::close(open_gate);
      if (!settle(request, rank, gate)) ::_exit(127);
      return;
    }
    ::setpgid(pid, pid);  // both sides set it, so that neither runs ahead
    started.push_back(pid);
  }
  for (const pid_t pid : started) {
    if (::write(reply, &pid, sizeof(pid)) != sizeof(pid)) give_up("reply", started);
  }
  const std::string open(started.size(), '1');
  if (::write(open_gate, open.data(), open.size()) != static_cast<ssize_t>(open.size())) give_up("gate", started);
  ::_exit(0);
}

}  // namespace tessera::launch
