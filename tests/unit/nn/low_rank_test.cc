#include "nn/ops/low_rank.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nn/kernels/bf16_dot.h"
#include "nn/ops/gemm.h"

namespace tessera::nn {
namespace {

struct Case {
  std::int64_t rows, columns, rank;
  at::ScalarType dtype;
};

at::Tensor drawn(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::kDouble).to(dtype);
}

/// The same matrix, stored by columns.
at::Tensor by_columns(const at::Tensor& t) {
  return t.t().contiguous().t();
}

/// In units of the dtype's resolution, of the largest element.
double apart(const at::Tensor& found, const at::Tensor& expected) {
  const double unit = found.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0x1p-20;
  return (found.to(at::kDouble) - expected).abs().max().item<double>() / expected.abs().max().item<double>() / unit;
}

class LowRankProducts : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    x_ = drawn({GetParam().rows, GetParam().columns}, GetParam().dtype);
    a_ = drawn({GetParam().rank, GetParam().columns}, GetParam().dtype);
    u_ = drawn({GetParam().rows, GetParam().rank}, GetParam().dtype);
  }
  at::Tensor x_, a_, u_;
};

TEST_P(LowRankProducts, ProjectRowsOntoTheRank) {
  const auto expected = 0.75 * at::mm(x_.to(at::kDouble), a_.to(at::kDouble).t());
  for (const auto& a : {a_, by_columns(a_)}) {
    const auto u = low_rank_project(x_, a, 0.75);
    EXPECT_EQ(u.scalar_type(), x_.scalar_type());
    EXPECT_LT(apart(u, expected), 1.0);
  }
}

TEST_P(LowRankProducts, AddBackToRows) {
  const auto expected = x_.to(at::kDouble) + 0.75 * at::mm(u_.to(at::kDouble), a_.to(at::kDouble));
  for (const auto& b : {a_, by_columns(a_)}) {
    const auto y = x_.clone();
    gemm_add(y, u_, b, 0.75);
    EXPECT_LT(apart(y, expected), 1.0);
  }
}

TEST_P(LowRankProducts, SumGradientsOverRows) {
  const auto expected = 0.75 * at::mm(u_.to(at::kDouble).t(), x_.to(at::kDouble));
  EXPECT_LT(apart(low_rank_gradient(u_, x_, 0.75), expected), 1.0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, LowRankProducts,
                         ::testing::Values(Case{64, 96, 8, at::kBFloat16}, Case{1, 1, 2, at::kBFloat16},
                                           Case{33, 47, 8, at::kBFloat16}, Case{67, 1056, 16, at::kBFloat16},
                                           Case{5, 33, 10, at::kBFloat16}, Case{130, 32, 6, at::kBFloat16},
                                           Case{40, 64, 3, at::kBFloat16}, Case{40, 64, 32, at::kBFloat16},
                                           Case{33, 47, 8, at::kFloat}));

TEST(LowRankProducts, OfFiniteRowsIgnoreWhatLiesBesideThem) {
  if (!kernels::has_bf16_dot()) GTEST_SKIP() << "no instructions for pairs of bfloat16";
  const auto around = at::full({7, 40}, std::numeric_limits<double>::quiet_NaN()).to(at::kBFloat16);
  const auto rows = around.narrow(0, 2, 3);  // 3 rows of NaN-surrounded memory, dense
  rows.fill_(1.0);
  const auto a = at::ones({2, 40}, at::kBFloat16), u = at::ones({3, 2}, at::kBFloat16);
  EXPECT_TRUE(at::equal(low_rank_project(rows, a), at::full({3, 2}, 40.0).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(low_rank_gradient(u, rows), at::full({2, 40}, 3.0).to(at::kBFloat16)));
  gemm_add(rows, u, a);
  EXPECT_TRUE(at::equal(rows, at::full({3, 40}, 3.0).to(at::kBFloat16)));
  EXPECT_TRUE(around.narrow(0, 0, 2).isnan().all().item<bool>());
  EXPECT_TRUE(around.narrow(0, 5, 2).isnan().all().item<bool>());
}

}  // namespace
}  // namespace tessera::nn
