#pragma once
// How ranks of several hosts find each other: through libtorch's TCPStore at MASTER_ADDR:MASTER_PORT. torchrun has one
// there already; otherwise rank 0 opens it for as long as the exchange takes.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/tcp.h"

namespace tessera::comm {

struct Exchange {
  Endpoint store;
  bool store_is_there = false;  // torchrun's agent keeps it
  int rank = 0, size = 1;
  std::string prefix;  // of the keys: one exchange's from another's
  /// Whether a text is this rank's. Everybody who reaches the store may write there: a text that is not genuine is
  /// ignored while the rank itself may put it right.
  std::function<bool(int rank, const std::string& text)> is_genuine;
  /// Throws an Error where the texts do not go together; it is passed on when that stays so for some seconds.
  std::function<void(const std::vector<std::string>& texts)> check = [](const auto&) {};
  std::chrono::milliseconds timeout{300'000};
};

/// Collective: the texts of all ranks, by rank, which all ranks have read alike. CommError after the timeout names the
/// ranks that are missing, and after some seconds one whose text is not genuine; ConfigError a port that cannot be
/// opened.
std::vector<std::string> exchange_texts(const Exchange& exchange, const std::string& mine);

}  // namespace tessera::comm
