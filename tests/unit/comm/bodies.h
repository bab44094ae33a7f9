#pragma once
// What each rank does in the suite that runs over every backend. A body throws where it sees something wrong.
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "tessera/comm/communicator.h"

namespace tessera::comm::testing {

using Body = std::function<void(std::shared_ptr<Communicator>)>;

/// Bodies for any number of ranks, by the name of what they show.
const std::map<std::string, Body>& bodies();
/// Bodies in which something goes wrong, each for its own test.
const std::map<std::string, Body>& faults();
/// TESSERA_TEST_STEPS random steps, the same ones for the same TESSERA_TEST_SEED.
void random_operations(std::shared_ptr<Communicator> c);
[[noreturn]] inline void unexpected(const char* file, int line, const std::string& what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

}  // namespace tessera::comm::testing

#define REQUIRE(condition) \
  if (!(condition)) ::tessera::comm::testing::unexpected(__FILE__, __LINE__, "expected " #condition)
