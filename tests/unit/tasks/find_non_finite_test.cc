#include "tasks/find_non_finite.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/small_net.h"

namespace tessera::tasks {
namespace {

TEST(FindNonFinite, NamesTheFirstModuleInTheOrderOfExecution) {
  const at::NoGradGuard no_grad;
  testing::SmallNet net;
  const auto run = [&] { (void)net(testing::batch(0, 0)); };
  EXPECT_EQ(find_non_finite(net, run), "");
  for (const auto& [block, weight] : {std::pair{1, "block1.down"}, {0, "block0.down"}}) {  // the later one first
    net.blocks[static_cast<std::size_t>(block)]->down->weight.fill_(std::numeric_limits<float>::infinity());
    EXPECT_EQ(find_non_finite(net, run), weight);
  }
}

}  // namespace
}  // namespace tessera::tasks
