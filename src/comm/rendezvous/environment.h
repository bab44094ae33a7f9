#pragma once
// What the environment says of how ranks meet and how long they wait. Who a rank is: base/rank_environment.h.
#include <chrono>
#include <string>

namespace tessera::comm {

/// TESSERA_COMM_TIMEOUT_S, which is stronger where it is set. ConfigError for what is no positive number of seconds.
std::chrono::milliseconds operation_timeout(std::chrono::milliseconds otherwise);

/// How long ranks wait for each other to meet: `init`, or what an operation may take, where that is less. At least 10
/// s: ranks do not start at the same moment.
std::chrono::milliseconds meeting_timeout(std::chrono::milliseconds init, std::chrono::milliseconds operation);

/// Of the environment; empty where it is not set.
std::string variable(const char* name);

}  // namespace tessera::comm
