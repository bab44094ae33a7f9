#include "launch/cause.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <tuple>

#include "launch/signals.h"

namespace tessera::launch {
namespace {

constexpr int kLostPeer = 5;  // of tasks: see cli/exit_code.h
constexpr int kBySignal = 128;

int distance_from_cause(const Ending& e) {
  if (e.by_signal) return 0;
  if (e.lost_a_peer()) return 2;
  return e.exit_code > kBySignal ? 1 : 0;
}

/// Rank 0's message is the one that the user has seen in full; so it speaks for all that failed in the same way.
bool speaks_for(const Ending& e, const Ending& other) {
  return e.rank == 0 && !e.by_signal && !other.by_signal && e.exit_code == other.exit_code;
}

}  // namespace

bool Ending::lost_a_peer() const {
  return !by_signal && exit_code == kLostPeer;
}

std::string describe(const Ending& ending) {
  const int signal = ending.exit_code - kBySignal;
  if (ending.by_signal) {
    return fmt::format("signal {} ({}{})", signal, signal_name(signal),
                       signal == SIGKILL ? ": perhaps out of memory" : "");
  }
  if (signal <= 0 || signal > SIGRTMAX) return fmt::format("exit code {}", ending.exit_code);
  return fmt::format("exit code {} (128 + {})", ending.exit_code, signal_name(signal));
}

void FirstCause::add(std::vector<Ending> endings) {
  std::sort(endings.begin(), endings.end(), [](const Ending& a, const Ending& b) {
    return std::tuple(distance_from_cause(a), !a.by_signal, a.rank) <
           std::tuple(distance_from_cause(b), !b.by_signal, b.rank);
  });
  for (const Ending& e : endings) {
    if (!found_ || distance_from_cause(e) < distance_from_cause(*found_) || speaks_for(e, *found_)) found_ = e;
  }
}

bool FirstCause::is_certain() const {
  return found_ && distance_from_cause(*found_) == 0;
}

}  // namespace tessera::launch
