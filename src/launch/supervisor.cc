#include "launch/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "launch/keeper.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// Time in which ranks that fail for the same reason may say so themselves before they are ended: rank 0's message is
/// the one that the user sees in full.
constexpr std::chrono::milliseconds kSettle{200};

/// Signals arrive as data while this lives.
class Signals {
 public:
  Signals() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&taken, s);
    ::sigprocmask(SIG_BLOCK, &taken, &before_);
    fd_ = Fd(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    if (fd_.get() < 0) throw Error(fmt::format("signalfd: {}", std::strerror(errno)));
  }
  ~Signals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  /// 0 where none is waiting.
  int next() {
    signalfd_siginfo info;
    return ::read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_;
  Fd fd_;
};

struct Rank {
  pid_t pid = -1;  // -1: not started; also its process group
  bool ended = false;
  int exit_code = 0;
  std::unique_ptr<RankStream> out, err;
};

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, const std::function<void(const std::string&)>& say)
      : options_(options), say_(say) {}
  ~Supervisor() { bury_all(); }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void start_all(std::vector<Command>& commands) {
    for (std::size_t r = 0; r < commands.size(); ++r) {
      Rank& rank = ranks_.emplace_back();
      rank.out = std::make_unique<RankStream>(name_of(r), STDOUT_FILENO, options_.output);
      rank.err = std::make_unique<RankStream>(name_of(r), STDERR_FILENO, options_.output);
      commands[r].stdout_fd = rank.out->child_fd();
      commands[r].stderr_fd = rank.err->child_fd();
      commands[r].announce_fd = keeper_.announce_fd();
      rank.pid = start(commands[r]);
      rank.out->close_child_end();
      rank.err->close_child_end();
    }
  }

  Outcome run() {
    while (alive() > 0) {
      wait_for_events();
      while (const int signal = signals_.next()) handle(signal);
      reap();
      act_on_deadlines();
    }
    bury_all();
    for (Rank& rank : ranks_) {
      for (RankStream* stream : {rank.out.get(), rank.err.get()}) {
        if (stream->read_fd() >= 0) stream->drain();
      }
    }
    return outcome();
  }

 private:
  int name_of(std::size_t r) const { return options_.first_rank + static_cast<int>(r); }

  int alive() const {
    int count = 0;
    for (const Rank& rank : ranks_) count += rank.ended ? 0 : 1;
    return count;
  }

  void wait_for_events() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<RankStream*> streams = {nullptr};
    for (Rank& rank : ranks_) {
      for (RankStream* stream : {rank.out.get(), rank.err.get()}) {
        if (stream->read_fd() < 0) continue;
        fds.push_back({stream->read_fd(), POLLIN, 0});
        streams.push_back(stream);
      }
    }
    int timeout = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
      timeout = static_cast<int>(std::max<std::int64_t>(0, left.count()));
    }
    if (::poll(fds.data(), fds.size(), timeout) < 0) return;  // EINTR: the caller looks at everything anyway
    for (std::size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) streams[i]->drain();
    }
  }

  void handle(int signal) {
    if (signal == SIGCHLD) return;  // reap() looks
    if (forwarded_ == 0) {
      forwarded_ = signal;
      say_(fmt::format("{}: waiting up to {} s for the ranks to end{}", ::strsignal(signal),
                       options_.signal_grace.count() / 1000,
                       signal == SIGINT ? " (press Ctrl-C again to end them at once)" : ""));
      kill_all(signal);
      stage_ = Stage::kTerminating;
      deadline_ = Clock::now() + options_.signal_grace;
    } else if (signal == SIGINT) {
      end_now();
    } else {
      kill_all(signal);
    }
  }

  /// Ended ranks stay zombies until bury_all(), so that their process groups' numbers cannot come to mean others.
  void reap() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      siginfo_t info{};
      if (rank.ended || ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0) continue;
      if (info.si_pid == 0) continue;
      rank.ended = true;
      rank.exit_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
      if (rank.exit_code == 0 || forwarded_ != 0 || stage_ > Stage::kSettling) continue;
      if (failed_ < 0) {
        failed_ = static_cast<int>(r);
        stage_ = Stage::kSettling;
        deadline_ = Clock::now() + kSettle;
      } else if (r == 0 && rank.exit_code == ranks_[static_cast<std::size_t>(failed_)].exit_code) {
        failed_ = 0;
      }
    }
  }

  void act_on_deadlines() {
    if (!deadline_ || Clock::now() < *deadline_) return;
    if (stage_ == Stage::kSettling) {
      kill_all(SIGTERM);
      stage_ = Stage::kTerminating;
      deadline_ = Clock::now() + options_.failure_grace;
    } else {
      end_now();
    }
  }

  void end_now() {
    kill_all(SIGKILL);
    stage_ = Stage::kKilled;
    deadline_.reset();
  }

  /// Whole groups: also what a rank has started itself.
  void kill_all(int signal) {
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) ::kill(-rank.pid, signal);
    }
  }

  /// Whatever the ranks left running ends with them.
  void bury_all() {
    kill_all(SIGKILL);
    for (Rank& rank : ranks_) {
      if (rank.pid > 0) ::waitpid(rank.pid, nullptr, 0);
      rank.pid = -1;
    }
  }

  Outcome outcome() const {
    Outcome out;
    out.forwarded_signal = forwarded_;
    if (forwarded_ != 0) {
      out.exit_code = 128 + forwarded_;
    } else if (failed_ >= 0) {
      const Rank& rank = ranks_[static_cast<std::size_t>(failed_)];
      out.failed_rank = name_of(static_cast<std::size_t>(failed_));
      out.exit_code = rank.exit_code;
      out.last_lines = rank.err->last_lines();
    }
    return out;
  }

  enum class Stage { kRunning, kSettling, kTerminating, kKilled };

  const SupervisorOptions& options_;
  const std::function<void(const std::string&)>& say_;
  Signals signals_;
  Keeper keeper_;
  std::vector<Rank> ranks_;
  Stage stage_ = Stage::kRunning;
  std::optional<Clock::time_point> deadline_;
  int forwarded_ = 0;
  int failed_ = -1;
};

}  // namespace

Outcome supervise(std::vector<Command> commands, const SupervisorOptions& options,
                  const std::function<void(const std::string&)>& say) {
  Supervisor supervisor(options, say);
  supervisor.start_all(commands);
  return supervisor.run();
}

std::string describe_exit(int exit_code) {
  if (exit_code <= 128 || exit_code > 128 + SIGRTMAX) return fmt::format("exit code {}", exit_code);
  return fmt::format("signal {} ({})", exit_code - 128, ::strsignal(exit_code - 128));
}

}  // namespace tessera::launch
