#include "comm/shm/fd_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

namespace tessera::comm {
namespace {

constexpr std::size_t kMaxText = 1024;
constexpr std::size_t kMaxDescriptors = 253;  // SCM_MAX_FD

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

socklen_t fill_address(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero: abstract, no file
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

FdSocket::FdSocket(const std::string& name) : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (socket_.get() < 0) fail("socket");
  const int on = 1;
  if (setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) fail("SO_PASSCRED");
  sockaddr_un address;
  const socklen_t length = fill_address(address, name);
  if (bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) fail("bind");
}

bool FdSocket::send(const std::string& to, std::string_view text, const std::vector<int>& descriptors) const {
  sockaddr_un address;
  iovec data{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = fill_address(address, to);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  const std::size_t bytes = descriptors.size() * sizeof(int);
  if (bytes > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  }
  if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0) return true;
  // ETOOMANYREFS: this user's processes have as many descriptors on their way as one may hold.
  for (const int later : {ECONNREFUSED, EAGAIN, ENOBUFS, EINTR, ETOOMANYREFS})
    if (errno == later) return false;
  fail("sendmsg");
}

std::optional<FdMessage> FdSocket::receive(std::chrono::milliseconds timeout) const {
  pollfd waiting{socket_.get(), POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(timeout.count())) <= 0) return std::nullopt;
  std::array<char, kMaxText> text;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control;
  iovec data{text.data(), text.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (count < 0) return std::nullopt;
  FdMessage result{std::string(text.data(), static_cast<std::size_t>(count)), {}};
  bool trusted = false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_CREDENTIALS) {
      ucred sender;
      std::memcpy(&sender, CMSG_DATA(header), sizeof(sender));
      trusted = sender.uid == getuid();
    }
    if (header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      result.descriptors.emplace_back(fd);
    }
  }
  if (!trusted || (message.msg_flags & MSG_TRUNC) != 0) return std::nullopt;
  if ((message.msg_flags & MSG_CTRUNC) != 0) {  // the kernel drops what it cannot open here
    errno = EMFILE;
    fail("another rank's descriptors cannot be taken; allow more open files (ulimit -n)");
  }
  return result;
}

}  // namespace tessera::comm
