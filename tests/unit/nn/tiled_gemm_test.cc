#include "nn/ops/tiled_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/cpu_level.h"

namespace tessera::nn {
namespace {

/// Multiples of 1/8 below 1: products are exact, and sums are while they are below 2^18.
at::Tensor eighths(at::IntArrayRef sizes, at::ScalarType dtype) {
  return (at::randint(-7, 8, sizes, at::kFloat) / 8).to(dtype);
}
at::Tensor exact(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}
at::Tensor transposed_in_memory(const at::Tensor& t) {
  return t.t().contiguous().t();
}

class TiledGemm : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  const at::ScalarType dtype_ = GetParam();
};

// 600 rows of 5000 and 300 columns are several parts each way, the last ones smaller.
TEST_P(TiledGemm, IsExactBeforeItIsRoundedInEveryLayout) {
  const auto a = eighths({600, 5000}, dtype_), b = eighths({5000, 300}, dtype_);
  const auto expected = exact(a, b).to(dtype_);
  for (const auto& left : {a, transposed_in_memory(a)})
    for (const auto& right : {b, transposed_in_memory(b)}) {
      const auto out = at::full({600, 300}, 7, dtype_);
      gemm_by_tiles(out, left, right, {}, 1.0, false);
      EXPECT_TRUE(at::equal(out, expected));
    }
}

TEST_P(TiledGemm, RoundsOnceWhatIsAddedAndScaled) {
  const auto a = eighths({300, 5000}, dtype_), b = eighths({5000, 140}, dtype_);
  const auto u = eighths({300, 6}, at::kFloat), v = eighths({6, 140}, at::kFloat);
  const auto whole = at::ones({310, 160}, dtype_), part = whole.narrow(0, 4, 300).narrow(1, 10, 140);
  gemm_by_tiles(part, a, b, {u, v}, 0.5, true);
  EXPECT_TRUE(at::equal(part, ((exact(a, b) + exact(u, v)) * 0.5 + 1).to(dtype_)));
  part.fill_(1);
  EXPECT_TRUE(at::equal(whole, at::ones({310, 160}, dtype_))) << "nothing beside it is written";
}

TEST_P(TiledGemm, TakesBatchesAndNothing) {
  const auto a = eighths({3, 9, 8}, dtype_), b = eighths({3, 7, 8}, dtype_).transpose(1, 2);
  const auto out = at::full({3, 9, 7}, 2, dtype_);
  gemm_by_tiles(out, a, b, {}, 1.0, true);
  EXPECT_TRUE(at::equal(out, (at::bmm(a.to(at::kDouble), b.to(at::kDouble)) + 2).to(dtype_)));
  const auto empty = at::ones({4, 5}, dtype_);
  gemm_by_tiles(empty, eighths({4, 0}, dtype_), eighths({0, 5}, dtype_), {}, 1.0, false);
  EXPECT_TRUE(at::equal(empty, at::ones({4, 5}, dtype_) * 0));
}

TEST_P(TiledGemm, AnElementDoesNotDependOnRowsAndThreads) {
  at::manual_seed(1);
  const auto a = at::randn({70, 700}).to(dtype_), b = at::randn({700, 300}).to(dtype_);
  const auto whole = at::empty({70, 300}, dtype_);
  gemm_by_tiles(whole, a, b);
  for (const auto& [first, rows] : {std::pair{0, 1}, {3, 6}, {40, 30}}) {
    const auto part = at::empty({rows, 300}, dtype_);
    gemm_by_tiles(part, a.narrow(0, first, rows), b);
    EXPECT_TRUE(at::equal(part, whole.narrow(0, first, rows))) << rows << " rows from " << first;
  }
  const auto batch = at::stack({a, a.neg(), a}), expected = at::stack({whole, whole.neg(), whole});
  const int threads = at::get_num_threads();
  for (const int other : {2, 3, 7}) {
    at::set_num_threads(other);
    const auto again = at::empty({70, 300}, dtype_), of_batch = at::empty({3, 70, 300}, dtype_);
    gemm_by_tiles(again, a, b);
    gemm_by_tiles(of_batch, batch, b.expand({3, 700, 300}));
    EXPECT_TRUE(at::equal(again, whole)) << other << " threads";
    EXPECT_TRUE(at::equal(of_batch, expected)) << other << " threads, a batch";
  }
  at::set_num_threads(threads);
}

TEST_P(TiledGemm, TakesAnyStrides) {
  const auto a = eighths({40, 2 * 300}, dtype_).view({40, 300, 2}).select(2, 1);
  const auto b = eighths({300, 2 * 50}, dtype_).view({300, 50, 2}).select(2, 0);
  const auto out = at::empty({40, 50}, dtype_);
  gemm_by_tiles(out, a, b);
  EXPECT_TRUE(at::equal(out, exact(a, b).to(dtype_)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TiledGemm, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(BelongsToTiles, WhatTheProcessorDoesNotMultiply) {
  const auto square = [](at::ScalarType dtype) { return at::ones({8, 8}, dtype); };
  const auto fp32 = square(at::kFloat), fp16 = square(at::kHalf), bf16 = square(at::kBFloat16);
  EXPECT_FALSE(belongs_to_tiles(fp32, fp32)) << "it is small";
  const auto large = at::ones({64, 64});
  EXPECT_EQ(belongs_to_tiles(large, large), !multiplies_float32());
  EXPECT_FALSE(belongs_to_tiles(large, large.to(at::kDouble)));
  const auto few = large.narrow(0, 0, 16);
  EXPECT_EQ(belongs_to_tiles(few, large.t()), !multiplies_float32());
  EXPECT_FALSE(belongs_to_tiles(few, large)) << "rows of b, and few of a";
  EXPECT_TRUE(belongs_to_tiles(fp16, fp16));
  EXPECT_FALSE(belongs_to_tiles(fp16.narrow(0, 0, 1), fp16.t())) << "a row and contiguous columns: dot products";
  EXPECT_TRUE(belongs_to_tiles(fp16.narrow(0, 0, 1), fp16));
#if defined(__x86_64__)
  EXPECT_EQ(belongs_to_tiles(bf16, bf16), cpu_level() < CpuLevel::kAvx512Bf16);
#endif
}

}  // namespace
}  // namespace tessera::nn
