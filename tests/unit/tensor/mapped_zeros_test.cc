#include "tensor/mapped_zeros.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tessera/tensor/allocator.h"

namespace tessera::tensor {
namespace {

TEST(MappedZeros, AreZeroAndOutsideOfTheMemoryOfSteps) {
  use_step_allocator();
  const auto before = allocator_stats().used_bytes;
  auto t = mapped_zeros(3'000'001, at::kFloat);
  EXPECT_EQ(allocator_stats().used_bytes, before);
  EXPECT_EQ(t.numel(), 3'000'001);
  EXPECT_EQ(t.count_nonzero().item<std::int64_t>(), 0);
  t.fill_(2);
  EXPECT_EQ(t.sum(at::kDouble).item<double>(), 6'000'002);
}

TEST(MappedZeros, SmallOnesAreZeroToo) {
  EXPECT_EQ(mapped_zeros(5, at::kBFloat16).count_nonzero().item<std::int64_t>(), 0);
  EXPECT_EQ(mapped_zeros(0, at::kFloat).numel(), 0);
}

}  // namespace
}  // namespace tessera::tensor
