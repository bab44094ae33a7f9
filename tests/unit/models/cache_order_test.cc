#include "models/cache_order.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <vector>

namespace tessera::models {
namespace {

at::Tensor cache_of(std::int64_t rows, std::int64_t capacity, std::int64_t width, at::ScalarType dtype) {
  return at::arange(rows * capacity * width).view({rows * capacity, width}).to(dtype);
}

TEST(CacheOrder, GivesEachRowWhatItsOldRowHasFilled) {
  constexpr std::int64_t kRows = 3, kCapacity = 5, kUsed = 4, kWidth = 6;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor spare;
    for (const auto& rows : {std::vector<std::int64_t>{2, 0, 0}, std::vector<std::int64_t>{1, 1, 2, 2, 0, 0},
                             std::vector<std::int64_t>{1}}) {
      const auto old = cache_of(kRows, kCapacity, kWidth, dtype);
      auto store = old.clone(), other = store + 1;
      const auto order = at::tensor(rows);
      const CacheOrder moved(order, kRows, kCapacity, kUsed);
      moved.apply(store, spare);
      moved.apply(other, spare);  // with the memory of the first one
      const auto expected = old.view({kRows, kCapacity, kWidth}).narrow(1, 0, kUsed).index_select(0, order);
      const auto filled = [&](const at::Tensor& t) {
        return t.view({order.numel(), kCapacity, kWidth}).narrow(1, 0, kUsed);
      };
      EXPECT_TRUE(at::equal(filled(store), expected));
      EXPECT_TRUE(at::equal(filled(other), expected + 1));
    }
  }
}

TEST(CacheOrder, MovesNothingWhereTheRowsStay) {
  auto store = cache_of(2, 3, 4, at::kFloat);
  const auto* before = store.const_data_ptr();
  at::Tensor spare, missing;
  const CacheOrder same(at::tensor({0, 1}, at::kLong), 2, 3, 3);
  same.apply(store, spare);
  same.apply(missing, spare);
  EXPECT_EQ(store.const_data_ptr(), before);
  EXPECT_FALSE(spare.defined());
  EXPECT_FALSE(missing.defined());
}

}  // namespace
}  // namespace tessera::models
