#include "train/interruption.h"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iostream>

#include "base/rank_environment.h"

namespace tessera::train {
namespace {

constexpr int kStopping[] = {SIGINT, SIGTERM, SIGHUP};
constexpr std::int64_t kSameRequestNs = 100'000'000;  // several senders, or one that signals process and group
constexpr int kBySignal = 128;

std::atomic<int> received{0};
std::atomic<std::int64_t> last_at_ns{0};
std::atomic<pid_t> launcher{-1};  // -1: nobody who would pass signals on
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler uses it");

std::int64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void on_signal(int signal, siginfo_t* info, void*) {
  const std::int64_t now = now_ns();
  const bool same_request = now - last_at_ns.exchange(now) < kSameRequestNs;
  int none = 0;
  if (received.compare_exchange_strong(none, signal)) return;
  const bool passed_on = info->si_code == SI_USER && info->si_pid == launcher.load();
  if (signal != SIGINT || same_request || passed_on) return;
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);  // acts when this handler returns
}

}  // namespace

Interruption::Interruption() {
  received = 0;
  last_at_ns = 0;
  launcher = read_rank_environment().found ? ::getppid() : -1;
  struct sigaction stop{}, nothing{};
  stop.sa_sigaction = on_signal;
  stop.sa_flags = SA_SIGINFO | SA_RESTART;
  nothing.sa_handler = SIG_IGN;
  for (const int s : kStopping) {
    struct sigaction& before = before_[s];
    ::sigaction(s, nullptr, &before);
    if (s != SIGHUP || before.sa_handler != SIG_IGN) ::sigaction(s, &stop, nullptr);
  }
  ::sigaction(SIGPIPE, &nothing, &before_[SIGPIPE]);
}

Interruption::~Interruption() {
  for (const auto& [signal, action] : before_) ::sigaction(signal, &action, nullptr);
}

bool Interruption::requested() {
  return received != 0;
}

int Interruption::signal() {
  return received;
}

void end_by_signal(int exit_code) {
  const int signal = received;
  if (signal == 0 || exit_code != kBySignal + signal) return;
  std::cout.flush();
  std::fflush(nullptr);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace tessera::train
