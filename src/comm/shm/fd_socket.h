#pragma once
// Messages with file descriptors between the processes of one user on one host: datagrams over abstract Unix sockets,
// which leave nothing behind. The kernel vouches for the sender's user; messages of others are dropped.
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"

namespace tessera::comm {

struct FdMessage {
  std::string text;
  std::vector<Descriptor> descriptors;
};

class FdSocket {
 public:
  /// Throws std::system_error (address in use: another process has this name).
  explicit FdSocket(const std::string& name);
  /// False: nobody has that name, or its queue is full: try again. Throws std::system_error otherwise.
  bool send(const std::string& to, std::string_view text, const std::vector<int>& descriptors) const;
  /// The next message of this user's processes, or none after `timeout`. Throws std::system_error (EMFILE) where this
  /// process may not open the descriptors of one.
  std::optional<FdMessage> receive(std::chrono::milliseconds timeout) const;

 private:
  Descriptor socket_;
};

}  // namespace tessera::comm
