#include "nn/ops/gemm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <torch/autograd.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "nn/kernels/bf16_gemm.h"
#include "nn/kernels/bf16_tiles.h"
#include "nn/kernels/row_kernels.h"

namespace tessera::nn {
namespace {

double gemm_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(Gemm, ReadsTransposedAndBatchedOperands) {
  const auto a = at::randn({33, 70}), b = at::randn({70, 19});
  const auto expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  EXPECT_LT(gemm_difference(gemm(a, b), expected), 2e-5);
  EXPECT_LT(gemm_difference(gemm(a.t().contiguous().t(), b.t().contiguous().t()), expected), 2e-5);
  const auto c = at::randn({5, 9, 8}), d = at::randn({5, 7, 8});
  EXPECT_LT(gemm_difference(gemm(c, d.transpose(1, 2)), at::bmm(c.to(at::kDouble), d.transpose(1, 2).to(at::kDouble))),
            1e-5);
}

TEST(Gemm, WritesAndAddsInPlaceIntoPartsOfATensor) {
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto a = at::randn({6, 16}).to(dtype), b = at::randn({16, 32}).to(dtype);
    const auto product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    const auto whole = at::ones({10, 32}, dtype), part = whole.narrow(0, 2, 6);
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.2;
    gemm_to(part, a, b, 0.5);
    EXPECT_LT(gemm_difference(part, product * 0.5), tolerance);
    gemm_add(part, a, b, 2.0);
    EXPECT_LT(gemm_difference(part, product * 2.5), tolerance);
    EXPECT_EQ(gemm_difference(whole.narrow(0, 0, 2), at::ones({2, 32})), 0);
    EXPECT_EQ(gemm_difference(whole.narrow(0, 8, 2), at::ones({2, 32})), 0);
  }
}

// Each of 400 shapes would keep half a megabyte.
TEST(Gemm, ManyShapesDoNotFillMemory) {
  const auto b = at::ones({64, 48});
  const auto multiply = [&](std::int64_t first, std::int64_t last) {
    for (auto rows = first; rows < last; ++rows) gemm(at::ones({rows, 64}), b);
  };
  const auto held = [] {
    const auto heap = ::mallinfo2();
    return static_cast<double>(heap.uordblks + heap.hblkhd) / (1 << 20);
  };
  multiply(1000, 1100);
  const auto before = held();
  multiply(1100, 1500);
  EXPECT_LT(held() - before, 50);
}

TEST(Gemm, GivesTheSameBitsAgain) {
  const auto a = at::randn({128, 96}), b = at::randn({96, 64});
  EXPECT_TRUE(at::equal(gemm(a, b), gemm(a, b)));
}

struct Panels {
  std::int64_t rows, inner, columns;
};

/// Products that are large enough for panels; gemm() takes other ways on other processors.
class PanelProducts : public ::testing::TestWithParam<Panels> {
 protected:
  // Multiples of 1/8 below 1: products are exact, and sums are while they are below 2^18.
  static at::Tensor eighths(at::IntArrayRef sizes) { return (at::randint(-7, 8, sizes) / 8).to(at::kBFloat16); }
  static at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
    return at::mm(a.to(at::kDouble), b.to(at::kDouble));
  }
  const Panels size_ = GetParam();
  const at::Tensor a_ = eighths({size_.rows, size_.inner}), b_ = eighths({size_.inner, size_.columns});
  const at::Tensor expected_ = product(a_, b_);
};

TEST_P(PanelProducts, AreExactBeforeTheyAreRoundedInEveryLayout) {
  const auto rounded = expected_.to(at::kFloat).to(at::kBFloat16);
  const auto at_ = a_.t().contiguous().t(), bt = b_.t().contiguous().t();
  EXPECT_TRUE(at::equal(gemm(a_, b_), rounded));
  EXPECT_TRUE(at::equal(gemm(a_, bt), rounded));
  EXPECT_TRUE(at::equal(gemm(at_, b_), rounded));
  EXPECT_TRUE(at::equal(gemm(at_, bt), rounded));
}

TEST_P(PanelProducts, ReadAndWritePartsOfATensorAndNothingBesideThem) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto wide_a = at::full({size_.rows + 2, size_.inner + 6}, nan).to(at::kBFloat16),
             wide_b = at::full({size_.inner + 2, size_.columns + 4}, nan).to(at::kBFloat16),
             whole = at::full({size_.rows + 2, size_.columns + 2}, 5.0).to(at::kBFloat16);
  const auto part = [](const at::Tensor& t, std::int64_t rows, std::int64_t columns) {
    return t.narrow(0, 1, rows).narrow(1, 1, columns);
  };
  const auto a = part(wide_a, size_.rows, size_.inner), b = part(wide_b, size_.inner, size_.columns),
             out = whole.narrow(0, 1, size_.rows);
  a.copy_(a_), b.copy_(b_);
  const auto dense = at::full({size_.rows, size_.columns}, 5.0).to(at::kBFloat16);
  gemm_to(dense, a, b, 0.5);
  EXPECT_TRUE(at::equal(dense, (expected_ * 0.5).to(at::kFloat).to(at::kBFloat16)));
  gemm_add(dense, a, b, 2.0);
  const auto first = (expected_ * 0.5).to(at::kFloat).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(dense, (expected_ * 2.0 + first.to(at::kDouble)).to(at::kFloat).to(at::kBFloat16)));
  const auto rows = at::full({size_.rows + 2, size_.columns}, 5.0).to(at::kBFloat16);
  gemm_to(rows.narrow(0, 1, size_.rows), a, b);
  EXPECT_TRUE(at::equal(rows.narrow(0, 1, size_.rows), expected_.to(at::kFloat).to(at::kBFloat16)));
  for (const std::int64_t r : {std::int64_t{0}, size_.rows + 1}) EXPECT_TRUE(rows[r].eq(5.0).all().item<bool>());
}

/// A copy whose last element stands before a page that may not be read.
class AtTheEndOfMemory {
 public:
  explicit AtTheEndOfMemory(const at::Tensor& t)
      : page_(::sysconf(_SC_PAGESIZE)), bytes_((static_cast<std::int64_t>(t.nbytes()) / page_ + 2) * page_) {
    at_ = static_cast<char*>(::mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(at_ + bytes_ - page_, static_cast<std::size_t>(page_), PROT_NONE);
    copy_ = at::from_blob(at_ + bytes_ - page_ - static_cast<std::int64_t>(t.nbytes()), t.sizes(), t.options());
    copy_.copy_(t);
  }
  ~AtTheEndOfMemory() { ::munmap(at_, size()); }
  AtTheEndOfMemory(const AtTheEndOfMemory&) = delete;
  AtTheEndOfMemory& operator=(const AtTheEndOfMemory&) = delete;
  const at::Tensor& copy() const { return copy_; }

 private:
  std::size_t size() const { return static_cast<std::size_t>(bytes_); }
  std::int64_t page_, bytes_;
  char* at_;
  at::Tensor copy_;
};

TEST_P(PanelProducts, ReadNothingBehindTheirFactors) {
  if (!kernels::has_bf16_gemm()) GTEST_SKIP() << "a library multiplies";
  const AtTheEndOfMemory a(a_), b(b_), at_(a_.t().contiguous()), bt(b_.t().contiguous());
  const auto expected = gemm(a_, b_);
  EXPECT_TRUE(at::equal(gemm(a.copy(), b.copy()), expected));
  EXPECT_TRUE(at::equal(gemm(a.copy(), bt.copy().t()), expected));
  EXPECT_TRUE(at::equal(gemm(at_.copy().t(), b.copy()), expected));
}

TEST_P(PanelProducts, TakeAnAdaptersProductAlong) {
  const auto u = eighths({size_.rows, 8}), v = eighths({8, size_.columns});
  const auto both = (expected_ + product(u, v)).to(at::kFloat).to(at::kBFloat16);
  // Where there are no panels the base product is rounded first, and the sum once more: to 8 bits each.
  const double tolerance = expected_.abs().max().item<double>() / 64;
  EXPECT_LE(gemm_difference(gemm_sum(a_, b_, u, v), both), tolerance);
  EXPECT_LE(gemm_difference(gemm_sum(a_, b_.t().contiguous().t(), u, v.t().contiguous().t()), both), tolerance);
  EXPECT_LE(gemm_difference(gemm_sum(a_, b_, u.to(at::kFloat), v.to(at::kFloat)), both), tolerance);
}

TEST_P(PanelProducts, ReadRowsThatAreAnyDistanceApart) {
  for (const std::int64_t more : {1, 2, 3}) {
    const auto wide = at::constant_pad_nd(a_, {0, more}, 7);
    EXPECT_TRUE(at::equal(gemm(wide.narrow(1, 0, size_.inner), b_), gemm(a_, b_))) << more;
  }
}

TEST_P(PanelProducts, DoNotDependOnHowManyRowsAndThreadsThereAre) {
  if (!kernels::has_bf16_gemm() || size_.inner % 2 != 0) GTEST_SKIP() << "a library multiplies";
  const auto a = at::randn({size_.rows + 40, size_.inner}).to(at::kBFloat16),
             b = at::randn({size_.inner, size_.columns}).to(at::kBFloat16);
  const auto all = gemm(a, b);
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const auto divided = gemm(a, b);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(all, divided));
  for (const std::int64_t rows : {1, 3, 35}) {
    if (rows < 32 && kernels::has_bf16_tiles()) continue;  // a library multiplies
    EXPECT_TRUE(at::equal(all.narrow(0, 5, rows), gemm(a.narrow(0, 5, rows), b))) << rows;
  }
}

// Of few rows and a transposed factor the product is made by a loop of its own, of more its transpose, of many itself.
TEST_P(PanelProducts, DoNotDependOnHowTheSecondFactorLies) {
  if (!kernels::has_bf16_gemm() || size_.inner % 2 != 0) GTEST_SKIP() << "a library multiplies";
  const auto a = at::randn({300, size_.inner}).to(at::kBFloat16),
             b = at::randn({size_.inner, size_.columns}).to(at::kBFloat16), bt = b.t().contiguous().t();
  const auto u = at::randn({300, 8}).to(at::kBFloat16), v = at::randn({8, size_.columns}).to(at::kBFloat16),
             vt = v.t().contiguous().t();
  const int threads = at::get_num_threads();
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 32, 95, 96, 97, 200, 256, 257, 300}) {
    if (rows < 32 && kernels::has_bf16_tiles()) continue;  // a library multiplies
    const auto few = a.narrow(0, 300 - rows, rows), few_u = u.narrow(0, 300 - rows, rows);
    const auto expected = gemm(few, b), with_adapter = gemm_sum(few, b, few_u, v);
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      EXPECT_TRUE(at::equal(gemm(few, bt), expected)) << rows << " rows, " << count << " threads";
      EXPECT_TRUE(at::equal(gemm_sum(few, bt, few_u, vt), with_adapter)) << rows << " rows, " << count << " threads";
      const auto wide = at::full({rows, size_.columns + 3}, 5.0).to(at::kBFloat16);
      const auto part = wide.narrow(1, 1, size_.columns);
      gemm_to(part, few, bt, 0.5);
      EXPECT_TRUE(at::equal(part, (gemm(few, b).to(at::kFloat) * 0.5).to(at::kBFloat16))) << rows;
      EXPECT_TRUE(wide.select(1, 0).eq(5.0).all().item<bool>() &&
                  wide.narrow(1, size_.columns + 1, 2).eq(5.0).all().item<bool>());
      const auto once = expected.clone(), twice = expected.clone();
      gemm_add(once, few, b);
      gemm_add(twice, few, bt);
      EXPECT_TRUE(at::equal(once, twice)) << rows;
    }
    at::set_num_threads(threads);
  }
}

// All bits set are no numbers, and zeros times those are none either.
TEST_P(PanelProducts, DoNotUseWhatScratchMemoryHeld) {
  if (!kernels::has_bf16_gemm() || size_.inner % 2 != 0) GTEST_SKIP() << "a library multiplies";
  const auto matrix = [](const at::Tensor& t) {
    return kernels::Bfloat16Matrix{static_cast<const std::uint16_t*>(t.const_data_ptr()), t.stride(0), t.stride(1)};
  };
  const auto u = eighths({size_.rows, 6}), v = eighths({6, size_.columns});
  const auto rounded = (expected_ + product(u, v)).to(at::kFloat).to(at::kBFloat16);
  for (const auto& a : {a_, a_.t().contiguous().t()}) {
    const kernels::Bf16Gemm both{matrix(a),  matrix(b_),    matrix(u),   matrix(v),
                                 size_.rows, size_.columns, size_.inner, 6};
    const auto scratch = at::full({static_cast<std::int64_t>(kernels::bf16_gemm_scratch_bytes(both))}, 255, at::kByte);
    const auto out = at::empty({size_.rows, size_.columns}, at::kBFloat16);
    kernels::bf16_gemm(both, {static_cast<std::uint16_t*>(out.mutable_data_ptr()), size_.columns, false, 1.0f},
                       scratch.mutable_data_ptr());
    EXPECT_TRUE(at::equal(out, rounded));
  }
}

// Rounded first, a sum of about 8 would not notice it.
TEST(PanelProductsOfAdapters, CountThoughTheyAreSmallerThanARounding) {
  if (!kernels::has_bf16_gemm()) GTEST_SKIP() << "a library multiplies";
  const auto a = at::randn({64, 64}).to(at::kBFloat16), b = at::randn({64, 512}).to(at::kBFloat16);
  const auto u = at::full({64, 2}, 0.0625).to(at::kBFloat16), v = at::full({2, 512}, 0.03125).to(at::kBFloat16);
  const auto added = gemm_sum(a, b, u, v).to(at::kDouble) - at::mm(a.to(at::kDouble), b.to(at::kDouble));
  EXPECT_NEAR(added.mean().item<double>(), 2 * 0.0625 * 0.03125, 4e-4);
}

INSTANTIATE_TEST_SUITE_P(Sizes, PanelProducts,
                         ::testing::Values(Panels{32, 2, 1}, Panels{33, 6, 16}, Panels{37, 34, 65}, Panels{64, 32, 64},
                                           Panels{40, 31, 63}, Panels{98, 96, 130}, Panels{770, 40, 80},
                                           Panels{50, 1056, 600}, Panels{100, 2050, 70}, Panels{800, 1031, 34},
                                           Panels{520, 4200, 530}, Panels{70, 768, 96}, Panels{96, 2048, 600}));

TEST(FewRows, OfFloat32HaveAResultOfTheirOwnEach) {
  for (const auto& [inner, columns] : {std::pair{1, 1}, std::pair{7, 5}, std::pair{64, 33}, std::pair{577, 130}}) {
    const auto a = at::randn({9, inner}), w = at::randn({columns, inner + 2}).narrow(1, 1, inner), b = w.t();
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    const int threads = at::get_num_threads();
    const auto together = gemm(a.narrow(0, 0, 8), b);
    EXPECT_TRUE(at::allclose(together.to(at::kDouble), exact.narrow(0, 0, 8), 1e-5, 1e-5)) << inner;
    for (std::int64_t rows = 1; rows <= 8; ++rows) {
      at::set_num_threads(rows % 2 == 0 ? 3 : 1);
      EXPECT_TRUE(at::equal(gemm(a.narrow(0, 8 - rows, rows), b), together.narrow(0, 8 - rows, rows))) << rows;
    }
    at::set_num_threads(threads);
  }
}

TEST(FewRows, OfFloat16AreSummedInFloat32AndRoundedOnce) {
  for (const auto& [inner, columns] : {std::pair{1, 1}, std::pair{7, 5}, std::pair{64, 33}, std::pair{577, 130}}) {
    auto w = at::randn({columns, inner + 2}).to(at::kHalf).narrow(1, 1, inner);
    w.select(1, 0).mul_(0x1p-20);  // numbers below 2^-14
    const auto a = at::randn({8, inner}).to(at::kHalf), b = w.t();
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    for (std::int64_t rows = 1; rows <= 8; ++rows) {
      const auto got = gemm(a.narrow(0, 0, rows), b);
      ASSERT_EQ(got.scalar_type(), at::kHalf);
      EXPECT_TRUE(at::allclose(got.to(at::kDouble), exact.narrow(0, 0, rows), 0x1p-11, 1e-4)) << inner << " " << rows;
    }
  }
  auto w = at::zeros({4, 40}, at::kHalf);
  w[0][37] = std::numeric_limits<float>::infinity(), w[1][3] = -std::numeric_limits<float>::infinity();
  w[2][5] = std::numeric_limits<float>::quiet_NaN(), w[3][39] = 65504.0;
  const auto y = gemm(at::ones({2, 40}, at::kHalf), w.t()).to(at::kFloat);
  EXPECT_EQ(y[0][0].item<float>(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(y[0][1].item<float>(), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(y[0][2].item<float>()));
  EXPECT_EQ(y[0][3].item<float>(), 65504.0f);
}

TEST(Affine, HasTheGradientsOfLinear) {
  for (const bool with_bias : {false, true}) {
    const auto x = at::randn({2, 5, 12}).requires_grad_(), w = at::randn({7, 12}).requires_grad_(),
               b = with_bias ? at::randn({7}).requires_grad_() : at::Tensor(), seed = at::randn({2, 5, 7});
    std::vector<at::Tensor> inputs = {x, w};
    if (with_bias) inputs.push_back(b);
    const auto y = affine(x, w, b), expected = at::linear(x, w, b);
    EXPECT_LT(gemm_difference(y.detach(), expected.detach()), 1e-5);
    const auto grads = torch::autograd::grad({y}, inputs, {seed}),
               wanted = torch::autograd::grad({expected}, inputs, {seed});
    for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_LT(gemm_difference(grads[i], wanted[i]), 1e-5) << i;
  }
}

TEST(Affine, FrozenWeightsAndInputsGetNoGradient) {
  const auto x = at::randn({5, 12}), w = at::randn({7, 12});
  EXPECT_FALSE(affine(x, w, {}).requires_grad());
  const auto trained = at::randn({5, 12}).requires_grad_();
  affine(trained, w, {}).sum().backward();
  EXPECT_LT(gemm_difference(trained.grad(), w.sum(0).expand({5, 12})), 1e-5);
  EXPECT_FALSE(w.grad().defined());
}

TEST(Bfloat16, ConvertsAsTorchDoes) {
  auto x = at::randn({1001}) * 1e3;
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x[1] = std::numeric_limits<float>::infinity();
  x[2] = std::numeric_limits<float>::max();
  x[3] = 1.00390625f;  // halfway between two
  x[4] = -0.0f;
  const auto narrowed = at::empty({1001}, at::kBFloat16);
  kernels::narrow(x.const_data_ptr<float>(),
                  reinterpret_cast<std::uint16_t*>(narrowed.mutable_data_ptr<at::BFloat16>()), 1001);
  EXPECT_TRUE(at::equal(narrowed.narrow(0, 1, 1000), x.to(at::kBFloat16).narrow(0, 1, 1000)));
  EXPECT_TRUE(std::isnan(narrowed[0].item<float>()));
  const auto widened = at::empty({1001}, at::kFloat);
  kernels::widen(reinterpret_cast<const std::uint16_t*>(narrowed.const_data_ptr<at::BFloat16>()),
                 widened.mutable_data_ptr<float>(), 1001);
  EXPECT_TRUE(at::equal(widened.narrow(0, 1, 1000), narrowed.to(at::kFloat).narrow(0, 1, 1000)));
}

}  // namespace
}  // namespace tessera::nn
