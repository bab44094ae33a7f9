// One suite over every backend.
#include <gtest/gtest.h>

#include "unit/comm/bodies.h"

namespace tessera::comm::testing {
namespace {

struct Backend {
  std::string name;
  int size;
};

class EveryBackend : public ::testing::TestWithParam<std::tuple<std::string, Backend>> {};

TEST_P(EveryBackend, Does) {
  const auto& [name, backend] = GetParam();
  const Body& body = bodies().at(name);
  if (backend.name == "solo") return body(make_solo());
  run_threads(backend.size, body);
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& [name, body] : bodies()) result.push_back(name);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Comm, EveryBackend,
                         ::testing::Combine(::testing::ValuesIn(names()),
                                            ::testing::Values(Backend{"solo", 1}, Backend{"threads", 2},
                                                              Backend{"threads", 3}, Backend{"threads", 5})),
                         [](const auto& info) {
                           const Backend& backend = std::get<1>(info.param);
                           return std::get<0>(info.param) + "_" + backend.name + std::to_string(backend.size);
                         });

}  // namespace
}  // namespace tessera::comm::testing
