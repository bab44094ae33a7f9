#include "launch/machines.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>

#include "launch/process.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// One line each way: "tessera launch RESTART MACHINE", and "machines 0 2 ..." when all are there.
constexpr const char* kCall = "tessera launch";
constexpr std::size_t kLongestCall = 64, kLongestAnswer = 64 * 1024;
constexpr int kSocket = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, kBacklog = 1024;
constexpr useconds_t kCallAgainMicroseconds = 100'000;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

Addresses look_up(const std::string& name, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw Error(fmt::format("the address '{}' of machine 0: {}", name, ::gai_strerror(error)));
  return {found, &::freeaddrinfo};
}

bool is_loopback(const addrinfo& a) {
  if (a.ai_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(a.ai_addr)->sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in*>(a.ai_addr)->sin_addr.s_addr) >> 24 == 127;
}

/// Where rank 0 would: at all addresses only where the name is this machine's own and leads to the loopback here.
Fd listen_at(const Meeting& m) {
  Addresses place = look_up(m.address, m.port);
  in_addr ipv4;
  in6_addr ipv6;
  const bool numeric =
      ::inet_pton(AF_INET, m.address.c_str(), &ipv4) == 1 || ::inet_pton(AF_INET6, m.address.c_str(), &ipv6) == 1;
  if (is_loopback(*place) && !numeric && m.address != "localhost") place = look_up("0.0.0.0", m.port);
  Fd fd(::socket(place->ai_family, kSocket, 0));
  const int yes = 1;
  if (fd.get() >= 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (fd.get() < 0 || ::bind(fd.get(), place->ai_addr, place->ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    throw Error(
        fmt::format("cannot meet the other machines at {} port {}: {}", m.address, m.port, std::strerror(errno)));
  }
  return fd;
}

/// Somebody who has called; a machine when the line is there.
struct Caller {
  Fd fd;
  std::string text = {};
  bool over = false;

  void listen(std::size_t most) {
    char buffer[256];
    const ssize_t n = ::recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
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

bool still_there(const Fd& fd) {
  char byte;
  return ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

std::vector<int> wait_for_others(const Meeting& m) {
  const Fd listener = listen_at(m);
  const auto deadline = Clock::now() + m.patience;
  std::vector<Caller> callers;
  std::map<int, Fd> others;
  while (others.size() + 1 < m.machines.size() && Clock::now() < deadline) {
    std::vector<pollfd> waiting = {{listener.get(), POLLIN, 0}};
    for (const Caller& caller : callers) waiting.push_back({caller.fd.get(), POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline));
    for (Caller& caller : callers) {
      caller.listen(kLongestCall);
      const int machine = caller.has_line() ? machine_of(caller.text, m) : -1;
      if (machine >= 0) others[machine] = std::move(caller.fd);
      caller.over = caller.over || caller.has_line();
    }
    std::erase_if(callers, [](const Caller& caller) { return caller.over; });
    if (const int fd = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); fd >= 0)
      callers.push_back({Fd(fd)});
  }
  std::erase_if(others, [](const auto& other) { return !still_there(other.second); });
  std::vector<int> machines = {m.self};
  for (const auto& [machine, fd] : others) machines.push_back(machine);
  const std::string answer = fmt::format("machines {}\n", fmt::join(machines, " "));
  for (const auto& [machine, fd] : others) [[maybe_unused]]
    const auto sent = ::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
  return machines;
}

bool connects(const Fd& fd, const addrinfo& place, Clock::time_point deadline) {
  if (::connect(fd.get(), place.ai_addr, place.ai_addrlen) == 0) return true;
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (errno != EINPROGRESS || ::poll(&waiting, 1, milliseconds_until(deadline)) <= 0) return false;
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

/// The answer to one call; "": none.
std::string ask(const Meeting& m, Clock::time_point deadline) {
  const std::string call = fmt::format("{} {} {}\n", kCall, m.restart, m.self);
  const Addresses places = look_up(m.address, m.port);
  for (const addrinfo* place = places.get(); place != nullptr; place = place->ai_next) {
    Caller peer{Fd(::socket(place->ai_family, kSocket, 0))};
    if (peer.fd.get() < 0 || !connects(peer.fd, *place, deadline)) continue;
    if (::send(peer.fd.get(), call.data(), call.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(call.size())) continue;
    while (!peer.over && !peer.has_line() && Clock::now() < deadline) {
      pollfd waiting{peer.fd.get(), POLLIN, 0};
      ::poll(&waiting, 1, milliseconds_until(deadline));
      peer.listen(kLongestAnswer);
    }
    if (peer.has_line()) return peer.text;
  }
  return "";
}

std::vector<int> call_machine_zero(const Meeting& m) {
  const auto deadline = Clock::now() + 2 * m.patience;
  while (Clock::now() < deadline) {
    std::istringstream answer(ask(m, deadline));
    std::string word;
    std::vector<int> machines;
    if (answer >> word && word == "machines") {
      for (int machine = 0; answer >> machine;) machines.push_back(machine);
    }
    if (std::find(machines.begin(), machines.end(), m.self) != machines.end()) return machines;
    ::usleep(kCallAgainMicroseconds);
  }
  throw Error(
      fmt::format("machine 0 does not answer at {} port {}: it is gone, has gone on without this one, or was "
                  "started without --max_restarts. The ranks here are not started again",
                  m.address, m.port));
}

}  // namespace

std::vector<int> meet(const Meeting& meeting) {
  return meeting.self == meeting.machines.front() ? wait_for_others(meeting) : call_machine_zero(meeting);
}

}  // namespace tessera::launch
