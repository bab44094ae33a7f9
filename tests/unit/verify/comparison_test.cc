#include "verify/comparison.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "tessera/comm/communicator.h"

namespace tessera::verify {
namespace {

TEST(Comparison, IsRelativeToTheLargestMagnitude) {
  Comparison table;
  const at::Tensor expected = at::tensor({100.0, 0.0});
  table.add("logits", expected + 1e-4, expected, 1e-5);
  EXPECT_TRUE(table.passed());
  table.add("logits", expected + 1e-2, expected, 1e-5);
  EXPECT_FALSE(table.passed());
}

TEST(Comparison, NanOtherShapesAndNothingFail) {
  const at::Tensor expected = at::ones({2});
  Comparison nothing, nan, shape, undefined;
  EXPECT_FALSE(nothing.passed());
  nan.add("loss", std::nan(""), 1.0, 1e-5);
  EXPECT_FALSE(nan.passed());
  shape.add("logits", at::ones({3}), expected, 1e-5);
  EXPECT_FALSE(shape.passed());
  undefined.add("logits", at::Tensor(), expected, 1e-5);
  EXPECT_FALSE(undefined.passed());
  std::ostringstream out;
  shape.print(out);
  EXPECT_NE(out.str().find("FAILED logits: has shape [3], the reference [2]"), std::string::npos) << out.str();
}

TEST(Comparison, WeightsMayDifferInOneElementOfAThousandUpToTheLimit) {
  const at::Tensor expected = at::zeros({2000});
  at::Tensor actual = expected.clone();
  actual[3] = 1e-3;
  actual[4] = 1e-3;
  Comparison two_of_2000, three_of_2000, over_the_limit;
  two_of_2000.add_weights("weights", actual, expected, 2e-5, 1e-2);
  EXPECT_TRUE(two_of_2000.passed());
  actual[5] = 1e-3;
  three_of_2000.add_weights("weights", actual, expected, 2e-5, 1e-2);
  EXPECT_FALSE(three_of_2000.passed());
  over_the_limit.add_weights("weights", expected + 0.1, expected, 1.0, 1e-2);
  EXPECT_FALSE(over_the_limit.passed());
}

TEST(Comparison, WeightsWithoutElementsAreEqual) {
  Comparison table;
  table.add_weights("lora_E", at::empty({0, 1}), at::empty({0, 1}), 2e-5, 1e-2);  // every rank was pruned
  EXPECT_TRUE(table.passed());
  table.add_weights("lora_E", at::empty({1, 1}), at::empty({0, 1}), 2e-5, 1e-2);
  EXPECT_FALSE(table.passed());
}

TEST(Comparison, MergeKeepsTheWorstOfAllRanks) {
  comm::run_threads(2, [](std::shared_ptr<comm::Communicator> group) {
    Comparison table;
    table.add("loss", group->rank() == 1 ? 1.1 : 1.0, 1.0, 1e-3);
    table.merge(*group);
    EXPECT_FALSE(table.passed());
  });
}

TEST(Comparison, MergeTakesInfiniteDifferences) {
  Comparison table;
  table.add("loss", INFINITY, 1.0, 1e-3);
  table.merge(*comm::make_solo());
  EXPECT_FALSE(table.passed());
}

TEST(Comparison, ScoresExcludeTheSameTokensAndAreNumbers) {
  const at::Tensor expected = at::tensor({1.0, -INFINITY, 2.0});
  Comparison same, other, nan, infinite;
  same.add_scores("scores", at::tensor({1.0, -INFINITY, 2.0}), expected, 1e-6);
  EXPECT_TRUE(same.passed());
  other.add_scores("scores", at::tensor({1.0, 0.0, -INFINITY}), expected, 1e-6);
  nan.add_scores("scores", at::tensor({1.0, std::nan(""), 2.0}), expected, 1e-6);
  infinite.add_scores("scores", at::tensor({1.0, INFINITY, 2.0}), expected, 1e-6);
  for (const auto* table : {&other, &nan, &infinite}) EXPECT_FALSE(table->passed());
}

}  // namespace
}  // namespace tessera::verify
