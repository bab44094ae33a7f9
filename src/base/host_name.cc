#include "base/host_name.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace tessera {
namespace {

constexpr useconds_t kAskAgainMicroseconds = 200'000;

/// getaddrinfo's own reasons.
class NameErrors : public std::error_category {
 public:
  const char* name() const noexcept override { return "host name"; }
  std::string message(int error) const override { return ::gai_strerror(error); }
};

const NameErrors kNameErrors;

bool may_come(const std::error_code& code) {
  const int error = code.value();
  return code.category() == kNameErrors && (error == EAI_AGAIN || error == EAI_NONAME || error == EAI_NODATA);
}

}  // namespace

Addresses look_up(const Endpoint& peer, int socket_type) {
  addrinfo hints{};
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(peer.address.c_str(), std::to_string(peer.port).c_str(), &hints, &found);
  if (error == 0) return {found, &::freeaddrinfo};
  const std::string what = fmt::format("the address of '{}'", peer.address);
  if (error == EAI_SYSTEM) throw std::system_error(errno, std::generic_category(), what);
  throw std::system_error(error, kNameErrors, what);
}

Addresses look_up_before(const Endpoint& peer, int socket_type, Deadline deadline) {
  while (true) {
    try {
      return look_up(peer, socket_type);
    } catch (const std::system_error& error) {
      if (!may_come(error.code()) || std::chrono::steady_clock::now() >= deadline) throw;
    }
    ::usleep(kAskAgainMicroseconds);
  }
}

std::string resolve(const std::string& name) {
  const Addresses addresses = look_up({name, 0}, SOCK_STREAM);
  return numeric(addresses->ai_addr, addresses->ai_addrlen);
}

std::string numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    throw std::system_error(errno, std::generic_category(), "an address");
  return text;
}

bool is_numeric_address(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (address.empty() || ::getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace tessera
