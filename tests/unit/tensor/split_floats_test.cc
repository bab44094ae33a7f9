#include "tensor/split_floats.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace tessera::tensor {
namespace {

SplitFloats halves(std::int64_t numel) {
  return {at::empty({numel}, at::kBFloat16), at::empty({numel}, at::kShort)};
}

at::Tensor written_and_read(const SplitFloats& split, const at::Tensor& values) {
  split.write(0, values.numel(), values.const_data_ptr<float>());
  auto result = at::empty_like(values);
  split.read(0, values.numel(), result.mutable_data_ptr<float>());
  return result;
}

/// Every upper half with lower halves around the middle between two bfloat16s.
at::Tensor all_kinds() {
  const std::uint32_t lowers[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff, 0x1234};
  auto values = at::empty({(1 << 16) * static_cast<std::int64_t>(std::size(lowers))});
  auto* out = values.mutable_data_ptr<float>();
  for (std::uint32_t upper = 0; upper < (1 << 16); ++upper)
    for (const auto lower : lowers) *out++ = std::bit_cast<float>(upper << 16 | lower);
  return values;
}

TEST(SplitFloats, HighIsWhatBfloat16RoundsTo) {
  const auto values = all_kinds();
  const auto split = halves(values.numel());
  written_and_read(split, values);
  const auto rounded = values.to(at::kBFloat16);
  const auto same = split.high.view(at::kShort) == rounded.view(at::kShort);
  EXPECT_TRUE((same | (values.isnan() & split.high.isnan())).all().item<bool>());
}

TEST(SplitFloats, ReadsWhatWasWrittenButForMiddlesThatRoundTowardsZero) {
  const auto values = all_kinds();
  const auto read = written_and_read(halves(values.numel()), values);
  std::int64_t middles = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const float x = values.const_data_ptr<float>()[i], y = read.const_data_ptr<float>()[i];
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(y)) << bits;
    } else if ((bits & 0x1ffff) == 0x8000) {
      ++middles;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(y), bits - 1);
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(y), bits);
    }
  }
  EXPECT_GT(middles, 30'000);
}

TEST(SplitFloats, WhatWasReadIsWrittenWithoutAChange) {
  const auto values = all_kinds();
  const auto split = halves(values.numel());
  const auto once = written_and_read(split, values), twice = written_and_read(split, once);
  EXPECT_TRUE(at::equal(once.view(at::kInt), twice.view(at::kInt)));
}

TEST(SplitFloats, RangesOfEveryLengthTouchNothingElse) {
  for (const std::int64_t numel : {1, 3, 7, 8, 15, 16, 17, 33}) {
    const auto split = halves(40);
    split.high.fill_(7);
    split.low.fill_(7);
    const auto values = at::arange(1, numel + 1, at::kFloat) * 1.2345678;
    split.write(3, numel, values.const_data_ptr<float>());
    auto read = at::full({40}, -1.0f);
    split.read(3, numel, read.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(read.narrow(0, 0, numel), values)) << numel;
    EXPECT_TRUE((read.narrow(0, numel, 40 - numel) == -1).all().item<bool>()) << numel;
    for (const auto& t : {split.high, split.low}) {
      EXPECT_TRUE((t.narrow(0, 0, 3) == 7).all().item<bool>()) << numel;
      EXPECT_TRUE((t.narrow(0, 3 + numel, 37 - numel) == 7).all().item<bool>()) << numel;
    }
  }
}

}  // namespace
}  // namespace tessera::tensor
