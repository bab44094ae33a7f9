#include "comm/rendezvous/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera::comm {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::chrono::milliseconds operation_timeout(std::chrono::milliseconds otherwise) {
  const auto text = variable("TESSERA_COMM_TIMEOUT_S");
  if (text.empty()) return otherwise;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != 0 || !(seconds > 0) || seconds > 1e9) {
    throw ConfigError(fmt::format("TESSERA_COMM_TIMEOUT_S must be a positive number of seconds, it is '{}'.", text),
                      "TESSERA_COMM_TIMEOUT_S");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::chrono::milliseconds meeting_timeout(std::chrono::milliseconds init, std::chrono::milliseconds operation) {
  return std::min(init, std::max<std::chrono::milliseconds>(operation, std::chrono::seconds(10)));
}

}  // namespace tessera::comm
