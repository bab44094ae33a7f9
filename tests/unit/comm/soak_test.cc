// Collectives while threads stand still at random instructions. TESSERA_TEST_SECONDS=3600 makes a soak of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "support/random_delays.h"
#include "unit/comm/bodies.h"

namespace tessera::comm::testing {
namespace {

TEST(Soak, CollectivesUnderRandomDelays) {
  std::mt19937 random(7);
  std::vector<std::string> names;
  for (const auto& [name, body] : bodies()) names.push_back(name);
  const auto delays_before = test::RandomDelays::count();
  std::int64_t groups = 0;
  {
    const test::RandomDelays delays(11);
    const auto end = std::chrono::steady_clock::now() + test::soak_time();
    for (; std::chrono::steady_clock::now() < end; ++groups) {
      std::shuffle(names.begin(), names.end(), random);
      const int ranks = 2 + static_cast<int>(random() % 4);
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + names[0] + ", then " + names[1]);
      run_threads(ranks, [&](const std::shared_ptr<Communicator>& group) {
        bodies().at(names[0])(group);
        bodies().at(names[1])(group);  // in the same group, behind what the first has left there
      });
    }
  }
  EXPECT_GT(groups, 0);
  EXPECT_GT(test::RandomDelays::count(), delays_before);
  std::cout << groups << " groups, " << test::RandomDelays::count() - delays_before << " delays\n";
}

}  // namespace
}  // namespace tessera::comm::testing
