#include "launch/machines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/reception.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestAnswer = 64 * 1024;
constexpr useconds_t kCallAgainMicroseconds = 100'000;
constexpr int kMostRefusals = 50;  // one after the other: a first machine that strangers overrun turns others away, too

/// Of a launcher to that of the first machine.
Call call_for(int restart, int machine) {
  constexpr std::uint64_t kLaunchers = 0x6c61756e63680000;
  return {kLaunchers + static_cast<std::uint64_t>(restart), machine, 0};
}

bool contains(const std::vector<int>& machines, int machine) {
  return std::find(machines.begin(), machines.end(), machine) != machines.end();
}

}  // namespace

void Machines::Peer::listen() {
  char buffer[256];
  while (is_there()) {
    const ssize_t n = ::recv(socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
      take(text.substr(0, end));
    if (n <= 0 || text.size() > kLongestAnswer) socket.reset();
  }
}

void Machines::Peer::take(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  int number = 0;
  if (word == "restart" && words >> number) asks_for = std::max(asks_for, number);
  if (word == "over") is_over = true;
  if (word != "machines") return;
  for (answer.clear(); words >> number;) answer.push_back(number);
}

void Machines::Peer::say(const std::string& line) {
  const std::string all = line + "\n";
  if (is_there() && ::send(socket.get(), all.data(), all.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(all.size()))
    socket.reset();
}

Machines::Machines(Place place, const Times& times) : place_(std::move(place)), times_(times) {
  for (int machine = 0; machine < place_.count; ++machine) left_.push_back(machine);
  for (const int machine : left_)
    if (machine != place_.self && (place_.self == 0 || machine == 0)) peers_[machine];
  meet(0);
}

Machines::~Machines() {
  for (auto& [machine, peer] : peers_) {
    peer.listen();  // closing a connection with something unread would cut off the word
    peer.say("over");
  }
}

std::vector<int> Machines::waiting() const {
  std::vector<int> descriptors;
  for (const auto& [machine, peer] : peers_)
    if (peer.is_there()) descriptors.push_back(peer.socket.get());
  return descriptors;
}

bool Machines::is_called(int restart) {
  bool called = false;
  for (auto& [machine, peer] : peers_) {
    peer.listen();
    called = called || peer.asks_for >= restart;
  }
  return called;
}

void Machines::meet(int restart) {
  const auto& [address, port] = place_.of_first;
  try {
    if (place_.self == 0)
      receive_all(restart);
    else
      come(restart);
  } catch (const std::system_error& e) {
    throw Error(fmt::format("cannot meet the other machines at {} port {}: {}", address, port, e.what()));
  }
}

/// Of the first machine.
void Machines::receive_all(int restart) {
  const auto begin = Clock::now(), lost = begin + (restart == 0 ? times_.start : times_.lost);
  const auto answer = std::max(begin + times_.answer, lost);
  look_up_before(place_.of_first, SOCK_STREAM, lost);
  Reception reception(listen_at({listening_address(place_.of_first), place_.of_first.port}), 0, place_.count,
                      place_.secret);
  for (auto& [machine, peer] : peers_) peer.say(fmt::format("restart {}", restart));
  while (true) {
    const auto now = Clock::now();
    auto next = Clock::time_point::max();
    for (auto& [machine, peer] : peers_) {
      peer.listen();
      if (peer.is_over || (peer.is_there() && peer.asks_for == restart)) continue;
      const auto limit = peer.is_there() ? answer : lost;
      if (now < limit) next = std::min(next, limit);
    }
    if (next == Clock::time_point::max()) break;
    for (auto& [call, socket] : reception.listen(next, waiting())) {
      const auto peer = peers_.find(call.from);
      if (peer == peers_.end() || call != call_for(restart, call.from)) continue;
      keep_alive(socket, times_.keep_alive);
      peer->second = {.socket = std::move(socket), .asks_for = restart};
    }
  }
  const auto before = std::exchange(left_, {place_.self});
  for (const auto& [machine, peer] : peers_)
    if (!peer.is_over && peer.is_there() && peer.asks_for == restart) left_.push_back(machine);
  if (restart == 0 && left_ != before) {
    std::vector<int> missing;
    std::copy_if(before.begin(), before.end(), std::back_inserter(missing), [&](int m) { return !contains(left_, m); });
    for (auto& [machine, peer] : peers_) peer.say("over");
    throw Error(fmt::format(
        "machine{} {} {} not come to {} port {} within {} s: start the same command there, with the same "
        "--max_restarts and TESSERA_SECRET",
        missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have",
        place_.of_first.address, place_.of_first.port, std::chrono::duration<double>(times_.start).count()));
  }
  for (auto& [machine, peer] : peers_) peer.say(fmt::format("machines {}", fmt::join(left_, " ")));
  std::erase_if(peers_, [this](const auto& peer) { return !contains(left_, peer.first); });
}

/// Of the others.
void Machines::come(int restart) {
  Peer& first = peers_.at(0);
  // Longer than the first waits, which knows who is missing.
  const auto begin = Clock::now(), alone = begin + times_.lost + (restart == 0 ? times_.start : times_.lost);
  const auto answer = std::max(begin + 2 * times_.answer, alone);
  const std::string place = fmt::format("{} port {}", place_.of_first.address, place_.of_first.port);
  const char* outcome = restart == 0 ? "The ranks here are not started" : "The ranks here are not started again";
  std::string reason = "no answer came";
  first.say(fmt::format("restart {}", restart));
  int refusals = 0;
  while (true) {
    first.listen();
    if (const auto machines = std::exchange(first.answer, {}); contains(machines, place_.self)) {
      left_ = machines;
      return;
    } else if (!machines.empty()) {
      throw Error(
          fmt::format("machine 0 has gone on without this one, with {}: the ranks here had not ended in time. "
                      "They are not started again",
                      fmt::join(machines, ", ")));
    }
    if (first.is_over) throw Error(fmt::format("the launcher of machine 0 has ended; look at its output. {}", outcome));
    const auto limit = first.is_there() ? answer : alone;
    if (Clock::now() >= limit) break;
    if (first.is_there()) {
      pollfd words{first.socket.get(), POLLIN, 0};
      ::poll(&words, 1, milliseconds_until(limit));
      continue;
    }
    try {
      call(restart, limit);
      refusals = 0;
    } catch (const std::system_error& e) {  // nobody listens there, or the connection broke
      reason = e.what();
      const bool refused = e.code() == std::errc::connection_reset || e.code() == std::errc::broken_pipe ||
                           e.code() == std::errc::permission_denied;
      refusals = refused ? refusals + 1 : 0;
    }
    if (refusals == kMostRefusals) {
      throw Error(
          fmt::format("machine 0 at {} does not accept this one's proof ({}): is TESSERA_SECRET the same on all "
                      "machines?",
                      place, reason));
    }
    ::usleep(kCallAgainMicroseconds);
  }
  throw Error(
      fmt::format("machine 0 does not answer at {} ({}): it is gone, has gone on without this one, or was started "
                  "without --max_restarts. {}",
                  place, reason, outcome));
}

void Machines::call(int restart, Deadline deadline) {
  Descriptor socket = connect_before(place_.of_first, deadline);
  introduce(socket, call_for(restart, place_.self), place_.secret, deadline);
  keep_alive(socket, times_.keep_alive);
  peers_[0] = {.socket = std::move(socket), .asks_for = 0};
}

}  // namespace tessera::launch
