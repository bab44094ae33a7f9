#pragma once
// A connection whose other end has said what a fuzz target's input says, and then has closed.
#include <sys/socket.h>

#include <cstdlib>
#include <string_view>

#include "base/tcp.h"

namespace tessera::fuzz {

struct SocketPair {
  Descriptor ours, theirs;
};

/// At most some tens of kilobytes: what a socket keeps unread.
inline SocketPair connection_that_said(std::string_view words) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  SocketPair pair{Descriptor(ends[0]), Descriptor(ends[1])};
  if (::send(ends[1], words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) std::abort();
  ::shutdown(ends[1], SHUT_WR);
  return pair;
}

inline Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(1);
}

}  // namespace tessera::fuzz
