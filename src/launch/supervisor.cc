#include "launch/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "launch/fork_server.h"
#include "launch/keeper.h"
#include "launch/signals.h"

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// Time in which ranks that fail for the same reason may say so themselves before they are ended; more where the first
/// did not say why it ended: those that notice its loss say what all were doing.
constexpr std::chrono::milliseconds kSettle{200}, kSettleWithoutCause{2'000};

/// Signals so close to each other are one request: `timeout`, service managers and clusters send several.
constexpr std::chrono::milliseconds kSameRequest{100};

/// Once the user wants an end: in which a reader of the output must take some of it.
constexpr int kReaderGraceMilliseconds = 1'000;
constexpr int kReadsOfAPipe = 16;  // of what ended ranks have left in it, at most 1 MiB

struct Rank {
  pid_t pid = -1;  // -1: not started; also its process group
  bool ended = false;
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
      rank.out = std::make_unique<RankStream>(name_of(r), out_, options_.output);
      rank.err = std::make_unique<RankStream>(name_of(r), err_, options_.output);
      commands[r].stdout_fd = rank.out->child_fd();
      commands[r].stderr_fd = rank.err->child_fd();
      commands[r].announce_fd = keeper_.announce_fd();
      if (!options_.fork_ranks) rank.pid = start(commands[r]);
    }
    if (options_.fork_ranks) server_.emplace(commands);
    for (Rank& rank : ranks_) {
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
    show_the_rest();
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
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}, out_.waiting(), err_.waiting()};
    const std::size_t first = fds.size();
    std::vector<RankStream*> streams;
    for (Rank& rank : ranks_) {
      for (RankStream* stream : {rank.out.get(), rank.err.get()}) {
        // Ranks that are to end must not wait for a reader.
        if (stream->read_fd() < 0 || (stream->is_held_up() && forwarded_ == 0)) continue;
        fds.push_back({stream->read_fd(), POLLIN, 0});
        streams.push_back(stream);
      }
    }
    const bool listens = options_.others != nullptr && !called_;
    if (listens && options_.others->is_called(options_.output.attempt + 1)) begin_restart();
    if (listens)
      for (const int other : options_.others->waiting()) fds.push_back({other, POLLIN, 0});
    if (server_) fds.push_back({server_->read_fd(), POLLIN, 0});
    int timeout = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
      timeout = static_cast<int>(std::max<std::int64_t>(0, left.count()));
    }
    if (::poll(fds.data(), fds.size(), timeout) < 0) return;  // EINTR: the caller looks at everything anyway
    out_.flush();
    err_.flush();
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (fds[first + i].revents != 0) streams[i]->drain();
    }
    if (server_ && fds.back().revents != 0 && server_->drain()) take_ranks();
  }

  /// Of ranks that may not know yet that others have failed: those that do shall say so themselves.
  void begin_restart() {
    called_ = true;
    if (stage_ != Stage::kRunning || forwarded_ != 0) return;
    say_("ranks of another machine have failed: ending those here, to start all again");
    stage_ = Stage::kSettling;
    deadline_ = Clock::now() + kSettleWithoutCause;
  }

  /// The server has ended: there are ranks, or it failed, which is the first rank's failure.
  void take_ranks() {
    const std::vector<pid_t> pids = server_->ranks();
    const int status = server_->status();
    server_.reset();
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (pids.empty())
        ranks_[r].ended = true;
      else
        ranks_[r].pid = pids[r];
    }
    if (!pids.empty()) return;
    all_done_ = false;
    const bool by_signal = WIFSIGNALED(status);
    // Also one that ends well, or whose end nobody told, has failed: there are no ranks.
    const Ending ending{name_of(0), by_signal ? 128 + WTERMSIG(status) : std::max(1, WEXITSTATUS(status)), by_signal};
    if (!is_our_doing(ending)) cause_.add({ending});
  }

  void handle(int signal) {
    if (signal == SIGCHLD) return;  // reap() looks
    const auto now = Clock::now();
    const bool same_request = requested_at_ && now - *requested_at_ < kSameRequest;
    requested_at_ = now;
    if (same_request) return;
    if (forwarded_ == 0) {
      begin_end(signal);
    } else if (signal == SIGINT) {
      return end_now();
    }
    send_all(signal);
  }

  void begin_end(int signal) {
    forwarded_ = signal;
    // Whoever signals all processes at once may have reached a rank before this one.
    const auto& cause = cause_.found();
    if (cause && cause->exit_code == 128 + signal && stage_ == Stage::kSettling) {
      cause_.forget();
      stage_ = Stage::kRunning;
      deadline_.reset();
    }
    failed_before_signal_ = cause_.found().has_value();
    if (!failed_before_signal_ && options_.signal_grace) deadline_ = Clock::now() + *options_.signal_grace;
    if (!has_room(STDERR_FILENO)) return;  // nobody reads it
    say_(fmt::format("{}: passed on, waiting{} for the ranks to end{}", signal_name(signal),
                     options_.signal_grace
                         ? fmt::format(" up to {} s", static_cast<double>(options_.signal_grace->count()) / 1000)
                         : "",
                     signal == SIGINT ? " (press Ctrl-C again to end them at once)" : ""));
  }

  /// Ended ranks stay zombies until bury_all(), so that their process groups' numbers cannot come to mean others.
  void reap() {
    std::vector<Ending> bad;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      siginfo_t info{};
      if (rank.ended || rank.pid < 0) continue;
      const bool is_known = ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
      if (is_known ? info.si_pid == 0 : errno != ECHILD) continue;
      rank.ended = true;
      const bool by_signal = is_known && info.si_code != CLD_EXITED;
      const int code = is_known ? info.si_status : 1;  // somebody else has taken how it ended
      const Ending ending{name_of(r), by_signal ? 128 + code : code, by_signal};
      all_done_ = all_done_ && ending.exit_code == 0;
      if (ending.exit_code != 0 && !is_our_doing(ending)) bad.push_back(ending);
    }
    if (bad.empty() || (stage_ == Stage::kTerminating && cause_.is_certain())) return;
    cause_.add(std::move(bad));
    // What a user's signal stops may have exit codes of its own; the others go on with what they do about it.
    const Ending& cause = *cause_.found();
    if (stage_ != Stage::kRunning || (forwarded_ != 0 && !cause.by_signal)) return;
    stage_ = Stage::kSettling;
    deadline_ = Clock::now() + (cause.by_signal || cause.lost_a_peer() ? kSettleWithoutCause : kSettle);
  }

  /// Ranks that end because of a signal from here, or because others did, are no news.
  bool is_our_doing(const Ending& ending) const {
    return sent_.contains(ending.exit_code - 128) || (forwarded_ != 0 && ending.lost_a_peer());
  }

  void act_on_deadlines() {
    if (!deadline_ || Clock::now() < *deadline_) return;
    if (stage_ == Stage::kSettling) {
      send_all(SIGTERM);
      stage_ = Stage::kTerminating;
      deadline_ = Clock::now() + options_.failure_grace;
    } else {
      end_now();
    }
  }

  void end_now() {
    send_all(SIGKILL);
    stage_ = Stage::kTerminating;
    deadline_.reset();
  }

  /// Whole groups: also what a rank has started itself.
  void send_all(int signal) {
    sent_.insert(signal);
    if (server_) {
      sent_.insert(SIGKILL);  // nothing has begun that it could end well
      server_->end();
    }
    for (const Rank& rank : ranks_) {
      if (rank.pid > 0) ::kill(-rank.pid, signal);
    }
  }

  /// Whatever the ranks left running ends with them.
  void bury_all() {
    send_all(SIGKILL);
    for (Rank& rank : ranks_) {
      if (rank.pid > 0) ::waitpid(rank.pid, nullptr, 0);
      rank.pid = -1;
    }
  }

  /// What ended ranks have left, as fast as it is read.
  void show_the_rest() {
    for (Rank& rank : ranks_) {
      for (RankStream* stream : {rank.out.get(), rank.err.get()}) {
        for (int left = kReadsOfAPipe; left > 0 && stream->read_fd() >= 0 && stream->drain(); --left) {
          wait_for_reader(stream->console());
        }
      }
    }
    wait_for_reader(out_);
    wait_for_reader(err_);
  }

  /// Until all is written, or the reader stands still and the user wants an end.
  void wait_for_reader(Console& console) {
    while (console.has_pending()) {
      pollfd fds[] = {{signals_.fd(), POLLIN, 0}, console.waiting()};
      if (::poll(fds, 2, forwarded_ == 0 ? -1 : kReaderGraceMilliseconds) == 0) return console.give_up();
      console.flush();
      while (const int signal = signals_.next()) {
        if (signal == SIGCHLD || forwarded_ != 0) continue;
        forwarded_ = signal;
        failed_before_signal_ = cause_.found().has_value();
      }
    }
  }

  Outcome outcome() const {
    Outcome out;
    out.forwarded_signal = forwarded_;
    out.failure = cause_.found();
    if (out.failure) {
      out.exit_code = out.failure->exit_code;
      const auto r = static_cast<std::size_t>(out.failure->rank - options_.first_rank);
      out.last_lines = ranks_[r].err->last_lines();
    }
    out.was_called = called_ && !all_done_;
    if (out.was_called && !out.failure) out.exit_code = 1;
    if (forwarded_ != 0 && !failed_before_signal_) out.exit_code = 128 + forwarded_;
    const auto note = [&](const std::string& what, int error) {
      if (error != 0) out.lost = fmt::format("{} of the ranks is not whole: {}", what, std::strerror(error));
    };
    for (const Rank& rank : ranks_)
      for (const RankStream* stream : {rank.out.get(), rank.err.get()})
        note(fmt::format("what '{}' has", options_.output.log_dir), stream->lost());
    note("stderr", err_.lost());
    note("stdout", out_.lost());
    return out;
  }

  enum class Stage { kRunning, kSettling, kTerminating };

  const SupervisorOptions& options_;
  const std::function<void(const std::string&)>& say_;
  Signals signals_;
  Keeper keeper_;
  Console out_{STDOUT_FILENO}, err_{STDERR_FILENO};  // behind the keeper, which must not hold them open
  std::optional<ForkServer> server_;                 // until there are ranks
  std::vector<Rank> ranks_;
  Stage stage_ = Stage::kRunning;
  std::optional<Clock::time_point> deadline_, requested_at_;
  FirstCause cause_;
  std::set<int> sent_;  // signals, to all ranks
  int forwarded_ = 0;
  bool failed_before_signal_ = false;
  bool called_ = false;   // by another machine
  bool all_done_ = true;  // no rank so far has ended otherwise than well
};

}  // namespace

Outcome supervise(std::vector<Command> commands, const SupervisorOptions& options,
                  const std::function<void(const std::string&)>& say) {
  Supervisor supervisor(options, say);
  supervisor.start_all(commands);
  return supervisor.run();
}

}  // namespace tessera::launch
