#include "launch/machines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <sstream>
#include <system_error>

#include "base/tcp.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;

// One line each way: "tessera launch RESTART MACHINE", and "machines 0 2 ..." when all are there.
constexpr const char* kCall = "tessera launch";
constexpr std::size_t kLongestCall = 64, kLongestAnswer = 64 * 1024;
constexpr useconds_t kCallAgainMicroseconds = 100'000;

/// Somebody who has called; a machine when the line is there.
struct Caller {
  Descriptor socket;
  std::string text = {};
  bool over = false;

  void listen(std::size_t most) {
    char buffer[256];
    const ssize_t n = ::recv(socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    over = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || (!has_line() && text.size() > most);
  }
  bool has_line() const { return text.find('\n') != std::string::npos; }
};

/// The machine that a line names; -1: a stranger, or one that is at another restart.
int machine_of(const std::string& line, const Meeting& m) {
  for (const int machine : m.machines) {
    if (machine != m.self && line == fmt::format("{} {} {}\n", kCall, m.restart, machine)) return machine;
  }
  return -1;
}

bool still_there(const Descriptor& fd) {
  char byte;
  return ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

std::vector<int> wait_for_others(const Meeting& m) {
  const auto deadline = Clock::now() + m.patience;
  look_up_before({m.address, m.port}, SOCK_STREAM, deadline);
  const Listener listener = listen_at({listening_address({m.address, m.port}), m.port});  // where rank 0 would
  std::vector<Caller> callers;
  std::map<int, Descriptor> others;
  while (others.size() + 1 < m.machines.size() && Clock::now() < deadline) {
    std::vector<pollfd> waiting = {{listener.socket.get(), POLLIN, 0}};
    for (const Caller& caller : callers) waiting.push_back({caller.socket.get(), POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline));
    for (Caller& caller : callers) {
      caller.listen(kLongestCall);
      const int machine = caller.has_line() ? machine_of(caller.text, m) : -1;
      if (machine >= 0) others[machine] = std::move(caller.socket);
      caller.over = caller.over || caller.has_line();
    }
    std::erase_if(callers, [](const Caller& caller) { return caller.over; });
    if (Descriptor socket = accept_waiting(listener); socket.get() >= 0) callers.push_back({std::move(socket)});
  }
  std::erase_if(others, [](const auto& other) { return !still_there(other.second); });
  std::vector<int> machines = {m.self};
  for (const auto& [machine, fd] : others) machines.push_back(machine);
  const std::string answer = fmt::format("machines {}\n", fmt::join(machines, " "));
  for (const auto& [machine, fd] : others) [[maybe_unused]]
    const auto sent = ::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  return machines;
}

/// The answer to a call; "": the other end has gone without one.
std::string ask(const Meeting& m, Clock::time_point deadline) {
  const std::string call = fmt::format("{} {} {}\n", kCall, m.restart, m.self);
  Caller peer{connect_before({m.address, m.port}, deadline)};
  send_all(peer.socket, call.data(), call.size(), deadline);
  while (!peer.over && !peer.has_line() && Clock::now() < deadline) {
    pollfd waiting{peer.socket.get(), POLLIN, 0};
    ::poll(&waiting, 1, milliseconds_until(deadline));
    peer.listen(kLongestAnswer);
  }
  return peer.has_line() ? peer.text : "";
}

/// Empty for what is no answer.
std::vector<int> machines_in(const std::string& answer) {
  std::istringstream words(answer);
  std::string word;
  std::vector<int> machines;
  if (words >> word && word == "machines")
    for (int machine = 0; words >> machine;) machines.push_back(machine);
  return machines;
}

std::vector<int> call_machine_zero(const Meeting& m) {
  const auto deadline = Clock::now() + 2 * m.patience;
  std::string reason = "no answer came";
  while (Clock::now() < deadline) {
    std::vector<int> machines;
    try {
      machines = machines_in(ask(m, deadline));
    } catch (const std::system_error& e) {  // nobody listens there, or the connection broke
      reason = e.what();
    }
    if (std::find(machines.begin(), machines.end(), m.self) != machines.end()) return machines;
    ::usleep(kCallAgainMicroseconds);
  }
  throw Error(
      fmt::format("machine 0 does not answer at {} port {} ({}): it is gone, has gone on without this one, or was "
                  "started without --max_restarts. The ranks here are not started again",
                  m.address, m.port, reason));
}

}  // namespace

std::vector<int> meet(const Meeting& meeting) {
  try {
    return meeting.self == meeting.machines.front() ? wait_for_others(meeting) : call_machine_zero(meeting);
  } catch (const std::system_error& e) {
    throw Error(
        fmt::format("cannot meet the other machines at {} port {}: {}", meeting.address, meeting.port, e.what()));
  }
}

}  // namespace tessera::launch
