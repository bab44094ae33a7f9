#include "comm/hosts/wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/plain_reason.h"
#include "base/quiet_thread.h"
#include "comm/group/patience.h"

namespace tessera::comm {
namespace {

constexpr std::uint32_t kFrameMagic = 0x54657353;
constexpr std::chrono::milliseconds kLook{100};           // at everybody, while waiting for one
constexpr std::chrono::milliseconds kLastWordsTime{300};  // between a broken connection and the peer's reason for it
constexpr std::int64_t kPieceBytes = 4 << 20;             // of a message: what the timeout is for
constexpr std::size_t kMaxUnread = 1 << 20;               // frames ahead and last words take some kilobytes

using std::chrono::steady_clock;

// Last words: "failed RANK TEXT" or "left N", up to the end of the connection.
constexpr std::string_view kFailed = "failed ", kLeft = "left ";

}  // namespace

struct Wire::Frame {
  std::uint32_t magic = kFrameMagic;
  std::uint32_t reserved = 0;
  std::uint64_t sequence = 0;
  Announcement announcement;
};

struct Wire::Link {
  int rank = -1;
  Descriptor control;
  std::string inbox;  // what has come: frames, then last words
  bool over = false;  // nothing more comes
  Frame last;         // the last frame that was taken
  bool has_met = false;
  bool begins_with_frame() const {
    return inbox.size() >= sizeof(Frame) && std::memcmp(inbox.data(), &kFrameMagic, sizeof(kFrameMagic)) == 0;
  }
  /// Behind frames that nobody has asked for yet.
  std::string_view words() const {
    std::string_view rest = inbox;
    while (rest.size() >= sizeof(Frame) && std::memcmp(rest.data(), &kFrameMagic, sizeof(kFrameMagic)) == 0) {
      rest.remove_prefix(sizeof(Frame));
    }
    return rest;
  }
};

Wire::Wire(Group& group, std::vector<Peer> peers, std::unique_ptr<Transport> transport,
           std::chrono::milliseconds timeout)
    : group_(group), transport_(std::move(transport)), timeout_(timeout), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (stop_.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  for (Peer& peer : peers) {
    auto& link = links_.emplace_back();
    if (peer.rank < 0) continue;
    link = std::make_unique<Link>();
    link->rank = peer.rank;
    link->control = std::move(peer.control);
  }
  watcher_ = start_quiet_thread("tessera-watch", [this] { watch(); });
}

Wire::~Wire() {
  say_last_words(fmt::format("{}{}", kLeft, group_.posted()));
  stop_watching();
}

void Wire::announce_failure(int rank, const std::string& message) {
  say_last_words(fmt::format("{}{} {}", kFailed, rank, message));
  stop_watching();
  transport_.reset();
}

void Wire::say_last_words(const std::string& words) {
  if (said_last_words_) return;
  said_last_words_ = true;
  for (const auto& link : links_) {
    if (!link) continue;
    listen(*link);  // closing a connection with something unread would cut off the words
    [[maybe_unused]] const auto n = ::send(link->control.get(), words.data(), words.size(), MSG_NOSIGNAL);
    ::shutdown(link->control.get(), SHUT_WR);
  }
}

/// The ends of control connections show as such beside frames, which wake nobody here.
void Wire::watch() const {
  std::vector<pollfd> waiting = {{stop_.get(), POLLIN, 0}};
  for (const auto& link : links_) waiting.push_back({link ? link->control.get() : -1, POLLRDHUP, 0});
  while (waiting[0].revents == 0) {
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(kLook.count())) < 0) continue;
    for (std::size_t i = 1; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) waiting[i].fd = -1;
    }
    transport_->interrupt();
  }
}

void Wire::stop_watching() {
  if (!watcher_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(stop_.get(), &one, sizeof(one));
  watcher_.join();
}

void Wire::meet(const Announcement& announcement) {
  announcement_ = announcement;
  Frame frame;
  frame.sequence = group_.current();
  frame.announcement = announcement;
  for (const auto& link : links_) {
    if (!link || ::send(link->control.get(), &frame, sizeof(frame), MSG_NOSIGNAL) == sizeof(frame)) continue;
    if (errno != EPIPE && errno != ECONNRESET) fail_lost(*link, errno);
    judge(*link, "");
  }
  Patience patience(timeout_);
  auto next_look = steady_clock::now() + kLook;
  std::vector<Link*> missing;
  for (const auto& link : links_) {
    if (link && !take_frame(*link)) missing.push_back(link.get());
  }
  while (!missing.empty()) {
    std::vector<pollfd> waiting;
    for (const Link* link : missing) waiting.push_back({link->control.get(), POLLIN, 0});
    ::poll(waiting.data(), waiting.size(), static_cast<int>(kLook.count()));
    std::erase_if(missing, [this](Link* link) {
      listen(*link);
      return take_frame(*link);
    });
    if (steady_clock::now() < next_look) continue;
    look_around();
    if (!missing.empty()) group_.note_wait(missing.front()->rank);
    next_look = steady_clock::now() + kLook;
    if (missing.empty() || !patience.is_over()) continue;
    std::string who;
    for (const Link* link : missing) {
      who += fmt::format("{}rank {} has not arrived", who.empty() ? "" : "; ", link->rank);
      if (link->has_met) {
        who += fmt::format(", its last operation was number {} ({})", link->last.sequence,
                           describe(link->last.announcement));
      }
    }
    fail_timeout(who, missing.front()->rank);
  }
  group_.note_wait(-1);
}

/// False when the peer's frame for this operation has not come yet.
bool Wire::take_frame(Link& link) {
  if (!link.begins_with_frame()) {
    if (link.over) judge(link, "");
    return false;
  }
  std::memcpy(&link.last, link.inbox.data(), sizeof(Frame));
  link.inbox.erase(0, sizeof(Frame));
  link.has_met = true;
  check_frame(link, link.last);
  return true;
}

void Wire::check_frame(const Link& link, const Frame& frame) {
  const std::uint64_t current = group_.current();
  if (frame.sequence == current && agrees(frame.announcement, announcement_)) return;
  const int self = group_.name(group_.rank());
  group_.fail(link.rank,
              fmt::format("Ranks disagree about operation {}: rank {} called {}, rank {} called {}{}. All "
                          "ranks must make the same calls in the same order.",
                          current, self, describe(announcement_), link.rank, describe(frame.announcement),
                          frame.sequence == current ? "" : fmt::format(" as its operation {}", frame.sequence)));
}

template <class Start>
Wire::Message Wire::start(int host, std::int64_t bytes, const Start& start) {
  Message message{host};
  try {
    for (std::int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
      message.pieces.push_back(start(begin, std::min(kPieceBytes, bytes - begin)));
    }
  } catch (const std::exception& error) {
    message.pieces.clear();
    judge(link_of(host), plain_reason(error));
  }
  return message;
}

Wire::Message Wire::send(int host, const void* data, std::int64_t bytes, Kind kind) {
  const auto* from = static_cast<const std::byte*>(data);
  return start(host, bytes, [&](std::int64_t begin, std::int64_t n) {
    return transport_->send(host, from + begin, n, static_cast<int>(kind));
  });
}

Wire::Message Wire::receive(int host, void* data, std::int64_t bytes, Kind kind) {
  auto* to = static_cast<std::byte*>(data);
  return start(host, bytes, [&](std::int64_t begin, std::int64_t n) {
    return transport_->receive(host, to + begin, n, static_cast<int>(kind));
  });
}

void Wire::wait(Message& message) {
  for (auto& piece : message.pieces) {
    Patience patience(timeout_);
    std::string broken;
    try {
      while (!transport_->wait(*piece)) {
        look_around();
        Link& link = link_of(message.host);
        if (link.over && !link.words().starts_with(kLeft)) judge(link, "");  // not every engine notices
        if (!patience.is_over()) continue;
        const int rank = link.rank;
        fail_timeout(fmt::format("rank {} has started it and not finished its part", rank), rank);
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      broken = plain_reason(error);
    }
    if (!broken.empty()) judge(link_of(message.host), broken);
    piece.reset();
  }
  message.pieces.clear();
}

void Wire::wait(std::vector<Message>& messages) {
  for (Message& message : messages) wait(message);
}

void Wire::look_around() {
  group_.check_world();
  for (const auto& link : links_) {
    if (!link) continue;
    listen(*link);
    check_words(*link);
  }
}

/// Takes what has come.
void Wire::listen(Link& link) {
  char buffer[4096];
  while (!link.over) {
    const ssize_t n = ::recv(link.control.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n > 0) link.inbox.append(buffer, static_cast<std::size_t>(n));
    if (link.inbox.size() > kMaxUnread && !said_last_words_)
      fail(link, fmt::format("rank {} says {} bytes that no operation asked for.", link.rank, link.inbox.size()));
    if (n < 0 && errno == EAGAIN) return;
    link.over = n == 0 || (n < 0 && errno == ECONNRESET);
    if (n < 0 && errno != EINTR && !link.over && !said_last_words_) fail_lost(link, errno);
    if (n < 0 && errno != EINTR) return;
  }
}

void Wire::check_words(const Link& link) {
  const std::string words(link.words());
  if (!link.over || !words.starts_with(kFailed)) return;
  char* text = nullptr;
  const int rank = static_cast<int>(std::strtol(words.c_str() + kFailed.size(), &text, 10));
  group_.fail(rank, fmt::format("{}: another rank has failed.{}", group_.current_name(), text));
}

// Nothing more comes from this peer, of which this rank wants something.
void Wire::judge(Link& link, const std::string& engine_says) {
  const auto limit = steady_clock::now() + kLastWordsTime;
  while (!link.over && steady_clock::now() < limit) {
    pollfd control{link.control.get(), POLLIN, 0};
    ::poll(&control, 1, static_cast<int>(kLastWordsTime.count()));
    listen(link);
  }
  check_words(link);
  const std::string_view words = link.words();
  if (words.starts_with(kLeft)) {
    fail(link, fmt::format("rank {} has left the group after {} operations.", link.rank, words.substr(kLeft.size())));
  }
  if (!link.over) {
    fail(link,
         fmt::format("the connection for data with rank {} has broken ({}: {}), though that rank is there: does a "
                     "firewall between the hosts cut connections that are idle?",
                     link.rank, transport_->name(), engine_says));
  }
  fail(link, fmt::format("the process of rank {} has ended (it was killed or it crashed). Look at that rank's output; "
                         "a run goes on from its newest checkpoint.",
                         link.rank));
}

void Wire::fail(const Link& link, const std::string& message) {
  group_.fail(link.rank, fmt::format("{}: {}", group_.current_name(), message));
}

void Wire::fail_lost(const Link& link, int error) {
  fail(link, fmt::format("the connection with the host of rank {} is lost ({}): is that host running, and the network "
                         "between?",
                         link.rank, std::strerror(error)));
}

void Wire::fail_timeout(const std::string& who, int first) {
  group_.fail(first, fmt::format("{}: no progress for {} ms: {}. If a rank is only slow, raise the operation timeout "
                                 "(TESSERA_COMM_TIMEOUT_S).",
                                 group_.current_name(), timeout_.count(), who));
}

}  // namespace tessera::comm
