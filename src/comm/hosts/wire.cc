#include "comm/hosts/wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tessera::comm {
namespace {

constexpr std::uint32_t kFrameMagic = 0x54657353;
constexpr std::chrono::milliseconds kLook{100};            // at the neighbours, while waiting for other hosts
constexpr std::chrono::milliseconds kLastWordsTime{300};   // between a closed connection and the peer's reason for it
constexpr std::chrono::milliseconds kStillOnTheWay{1000};  // data of a peer that has ended

using std::chrono::steady_clock;

// Last words: "failed RANK TEXT" or "left N", up to the end of the connection.
constexpr std::string_view kFailed = "failed ", kLeft = "left ";

}  // namespace

struct Wire::Frame {
  std::uint32_t magic = kFrameMagic;
  std::uint32_t reserved = 0;
  std::uint64_t sequence = 0;
  Announcement announcement;
  std::int64_t bytes = 0;
};

struct Wire::Outgoing {
  Frame frame;
  const std::byte* data;
  std::size_t sent = 0;  // of frame and data together
};

struct Wire::Incoming {
  std::uint64_t sequence;
  Announcement announcement;
  std::byte* data;
  std::int64_t bytes;
};

struct Wire::Link {
  int rank = -1;
  Connection connection;
  std::deque<Outgoing> outgoing;
  std::deque<Incoming> incoming;
  std::uint64_t sends = 0, sent = 0, receives = 0, received = 0;
  Frame frame;            // of the first incoming
  std::size_t taken = 0;  // of that frame and its data together
  std::uint64_t frames = 0;
  std::string words;       // from the peer's life line
  bool life_over = false;  // it has been closed
  steady_clock::time_point over_since;
  bool busy() const { return !outgoing.empty() || !incoming.empty(); }
};

Wire::Wire(Group& group, std::vector<Peer> peers, std::chrono::milliseconds timeout)
    : group_(group), timeout_(timeout) {
  for (Peer& peer : peers) {
    auto& link = links_.emplace_back();
    if (peer.rank < 0) continue;
    link = std::make_unique<Link>();
    link->rank = peer.rank;
    link->connection = std::move(peer.connection);
  }
}

Wire::~Wire() {
  say_last_words(fmt::format("{}{}", kLeft, group_.posted()));
}

void Wire::announce_failure(int rank, const std::string& message) {
  say_last_words(fmt::format("{}{} {}", kFailed, rank, message));
}

void Wire::say_last_words(const std::string& words) {
  if (said_last_words_) return;
  said_last_words_ = true;
  for (const auto& link : links_) {
    if (!link) continue;
    [[maybe_unused]] const auto n = ::send(link->connection.life.get(), words.data(), words.size(), MSG_NOSIGNAL);
    ::shutdown(link->connection.life.get(), SHUT_WR);
  }
}

std::uint64_t Wire::send(int host, const void* data, std::int64_t bytes) {
  Link& link = *links_[static_cast<std::size_t>(host)];
  Frame frame;
  frame.sequence = group_.current();
  frame.announcement = announcement_;
  frame.bytes = bytes;
  link.outgoing.push_back({frame, static_cast<const std::byte*>(data)});
  return ++link.sends;
}

std::uint64_t Wire::receive(int host, void* data, std::int64_t bytes) {
  Link& link = *links_[static_cast<std::size_t>(host)];
  link.incoming.push_back({group_.current(), announcement_, static_cast<std::byte*>(data), bytes});
  return ++link.receives;
}

void Wire::wait_sent(int host, std::uint64_t count) {
  const Link& link = *links_[static_cast<std::size_t>(host)];
  wait_until([&] { return link.sent >= count; });
}

void Wire::wait_received(int host, std::uint64_t count) {
  const Link& link = *links_[static_cast<std::size_t>(host)];
  wait_until([&] { return link.received >= count; });
}

void Wire::wait_all() {
  wait_until([&] { return std::none_of(links_.begin(), links_.end(), [](const auto& l) { return l && l->busy(); }); });
}

bool Wire::progress() {
  return poll_once(std::chrono::milliseconds(0));
}

template <class Done>
void Wire::wait_until(const Done& done) {
  last_progress_ = steady_clock::now();
  auto next_look = last_progress_ + kLook;
  poll_once(std::chrono::milliseconds(0));
  while (!done()) {
    poll_once(kLook);
    const auto now = steady_clock::now();
    if (now >= next_look) {
      group_.check_world();
      next_look = now + kLook;
    }
    if (!done() && now - last_progress_ > timeout_) fail_timeout();
  }
}

/// False when nothing is left to move.
bool Wire::poll_once(std::chrono::milliseconds nap) {
  std::vector<pollfd> waiting;
  std::vector<Link*> of;
  for (const auto& link : links_) {
    if (!link || !link->busy()) continue;
    const int events = (link->outgoing.empty() ? 0 : POLLOUT) | (link->incoming.empty() ? 0 : POLLIN);
    waiting.push_back({link->connection.data.get(), static_cast<short>(events), 0});
    waiting.push_back({link->life_over ? -1 : link->connection.life.get(), POLLIN, 0});
    of.push_back(link.get());
  }
  if (of.empty()) return false;
  if (::poll(waiting.data(), waiting.size(), static_cast<int>(nap.count())) < 0) return true;  // EINTR
  for (std::size_t i = 0; i < of.size(); ++i) {
    Link& link = *of[i];
    const int data = waiting[2 * i].revents;
    if ((data & POLLIN) != 0) pull(link);
    if ((data & POLLOUT) != 0) push(link);
    if ((data & (POLLERR | POLLHUP)) != 0 && (data & (POLLIN | POLLOUT)) == 0) judge(link, true);
    if (waiting[2 * i + 1].revents != 0) listen_to_life(link);
    if (link.life_over && link.busy()) judge(link, false);
  }
  return std::any_of(links_.begin(), links_.end(), [](const auto& l) { return l && l->busy(); });
}

void Wire::push(Link& link) {
  while (!link.outgoing.empty()) {
    Outgoing& out = link.outgoing.front();
    const std::size_t total = sizeof(Frame) + static_cast<std::size_t>(out.frame.bytes);
    iovec parts[2];
    int count = 0;
    if (out.sent < sizeof(Frame)) {
      parts[count++] = {reinterpret_cast<std::byte*>(&out.frame) + out.sent, sizeof(Frame) - out.sent};
    }
    const std::size_t data_sent = out.sent < sizeof(Frame) ? 0 : out.sent - sizeof(Frame);
    const std::size_t data_left = static_cast<std::size_t>(out.frame.bytes) - data_sent;
    if (data_left > 0) parts[count++] = {const_cast<std::byte*>(out.data) + data_sent, data_left};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<std::size_t>(count);
    const ssize_t n = ::sendmsg(link.connection.data.get(), &message, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) return judge(link, true);
    out.sent += static_cast<std::size_t>(n);
    last_progress_ = steady_clock::now();
    if (out.sent < total) return;
    ++link.sent;
    link.outgoing.pop_front();
  }
}

void Wire::pull(Link& link) {
  while (!link.incoming.empty()) {
    Incoming& in = link.incoming.front();
    const bool in_frame = link.taken < sizeof(Frame);
    std::byte* to =
        in_frame ? reinterpret_cast<std::byte*>(&link.frame) + link.taken : in.data + (link.taken - sizeof(Frame));
    const std::size_t wanted =
        in_frame ? sizeof(Frame) - link.taken : sizeof(Frame) + static_cast<std::size_t>(in.bytes) - link.taken;
    if (wanted > 0) {
      const ssize_t n = ::recv(link.connection.data.get(), to, wanted, 0);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) return judge(link, true);
      link.taken += static_cast<std::size_t>(n);
      last_progress_ = steady_clock::now();
      if (in_frame && link.taken == sizeof(Frame)) check_frame(link);
    }
    if (link.taken < sizeof(Frame) + static_cast<std::size_t>(in.bytes)) continue;
    link.taken = 0;
    ++link.received;
    link.incoming.pop_front();
  }
}

void Wire::check_frame(Link& link) {
  const Frame& frame = link.frame;
  const Incoming& in = link.incoming.front();
  ++link.frames;
  if (frame.magic == kFrameMagic && frame.sequence == in.sequence && agrees(frame.announcement, in.announcement) &&
      frame.bytes == in.bytes) {
    return;
  }
  const int self = group_.name(group_.rank());
  group_.fail(link.rank,
              fmt::format("Ranks disagree about operation {}: rank {} called {}, rank {} called {}{}. All "
                          "ranks must make the same calls in the same order.",
                          in.sequence, self, describe(in.announcement), link.rank, describe(frame.announcement),
                          frame.sequence == in.sequence ? "" : fmt::format(" as its operation {}", frame.sequence)));
}

void Wire::listen_to_life(Link& link) {
  char buffer[4096];
  const ssize_t n = ::recv(link.connection.life.get(), buffer, sizeof(buffer), 0);
  if (n > 0) {
    link.words.append(buffer, static_cast<std::size_t>(n));
    return;
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0 && errno != ECONNRESET) {
    fail(link, fmt::format("the connection with the host of rank {} is lost ({}): is that host running, and the "
                           "network between?",
                           link.rank, std::strerror(errno)));
  }
  link.life_over = true;
  link.over_since = steady_clock::now();
}

// What it means that a peer has closed a connection, when this rank still wants something of it.
void Wire::judge(Link& link, bool data_is_over) {
  const auto limit = steady_clock::now() + kLastWordsTime;
  while (data_is_over && !link.life_over && steady_clock::now() < limit) {
    pollfd life{link.connection.life.get(), POLLIN, 0};
    if (::poll(&life, 1, static_cast<int>(kLastWordsTime.count())) > 0) listen_to_life(link);
  }
  if (link.words.starts_with(kFailed)) {
    char* text = nullptr;
    const int rank = static_cast<int>(std::strtol(link.words.c_str() + kFailed.size(), &text, 10));
    group_.fail(rank, fmt::format("{}: another rank has failed.{}", group_.current_name(), text));
  }
  if (!data_is_over && steady_clock::now() - std::max(link.over_since, last_progress_) < kStillOnTheWay) return;
  if (link.words.starts_with(kLeft)) {
    fail(link,
         fmt::format("rank {} has left the group after {} operations.", link.rank, link.words.substr(kLeft.size())));
  }
  fail(link, fmt::format("the process of rank {} has ended (it was killed or it crashed). Look at that rank's output.",
                         link.rank));
}

void Wire::fail(const Link& link, const std::string& message) {
  group_.fail(link.rank, fmt::format("{}: {}", group_.current_name(), message));
}

void Wire::fail_timeout() {
  std::string who;
  int first = -1;
  for (const auto& link : links_) {
    if (!link || !link->busy()) continue;
    if (first < 0) first = link->rank;
    if (!who.empty()) who += "; ";
    if (link->incoming.empty()) {
      who += fmt::format("rank {} takes no data", link->rank);
    } else if (link->taken > 0 || (link->frames > 0 && link->frame.sequence == group_.current())) {
      who += fmt::format("rank {} has started it and not finished its part", link->rank);
    } else if (link->frames == 0) {
      who += fmt::format("rank {} has not arrived", link->rank);
    } else {
      who += fmt::format("rank {} has not arrived, its last operation was number {} ({})", link->rank,
                         link->frame.sequence, describe(link->frame.announcement));
    }
  }
  group_.fail(first, fmt::format("{}: no progress for {} ms: {}. If a rank is only slow, raise the operation timeout "
                                 "(TESSERA_COMM_TIMEOUT_S).",
                                 group_.current_name(), timeout_.count(), who));
}

}  // namespace tessera::comm
