// Seeds, and where random numbers are: this library's stream and libtorch's generators.
#include "tessera/tensor/random.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tensor/generators.h"
#include "tensor/rng.h"

namespace tessera {
namespace {

struct Draw {
  tensor::RandomKey key = tensor::next_key();
  at::Tensor normal = at::randn({3});
  bool operator==(const Draw& other) const {
    return key.a == other.key.a && key.b == other.key.b && at::equal(normal, other.normal);
  }
};

TEST(ManualSeed, StartsTheStreamAndLibtorchsGeneratorsAgain) {
  manual_seed(5);
  const Draw first, second;
  EXPECT_FALSE(first == second);
  manual_seed(5);
  EXPECT_TRUE(Draw() == first);
  manual_seed(6);
  EXPECT_FALSE(Draw() == first);
}

TEST(ManualSeed, StreamsDrawOtherNumbers) {
  manual_seed(5, 1);
  const Draw one;
  manual_seed(5, 2);
  const Draw two;
  EXPECT_FALSE(at::equal(one.normal, two.normal));
  EXPECT_NE(one.key.a, two.key.a);
}

TEST(RandomGuard, WhatIsDrawnInsideChangesNothingBehindIt) {
  manual_seed(5);
  const Draw before, expected;
  manual_seed(5);
  EXPECT_TRUE(Draw() == before);
  {
    const tensor::RandomGuard guard;
    (void)Draw();
    manual_seed(9);
  }
  EXPECT_TRUE(Draw() == expected);
}

TEST(GeneratorStates, AreEqualUntilSomethingIsDrawn) {
  const auto before = tensor::GeneratorStates::now();
  EXPECT_TRUE(before.states().contains("cpu"));
  EXPECT_TRUE(before == tensor::GeneratorStates::now());
  const auto drawn = at::randn({1});  // a pair is made, one of it kept for the next call
  EXPECT_FALSE(before == tensor::GeneratorStates::now());
  before.restore();
  EXPECT_TRUE(at::equal(at::randn({1}), drawn));
}

}  // namespace
}  // namespace tessera
