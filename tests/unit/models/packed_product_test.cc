// Products with 4-bit weights: panels that are made of codes hold the dequantised values, and a product has the bits of
// the same product with the dequantised matrix.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_gemm.h"
#include "nn/ops/lora_linear.h"
#include "quant/four_bit_codec.h"
#include "tensor/panel_codec.h"
#include "tessera/nn/weight.h"

namespace tessera::quant {
namespace {

using nn::Weight;
using tensor::PairsOf;

std::shared_ptr<const tensor::PackedMatrix> packed_normal(const FourBitSettings& settings, std::int64_t rows,
                                                          std::int64_t columns) {
  return std::make_shared<const tensor::PackedMatrix>(
      tensor::pack(four_bit_codec(settings), at::randn({rows, columns})));
}

std::vector<FourBitSettings> all_settings() {
  std::vector<FourBitSettings> all;
  for (const auto type : {FourBitType::kNf4, FourBitType::kFp4})
    for (const std::int64_t block : {32, 64, 256, 4096})
      for (const bool nested : {false, true}) all.push_back({.type = type, .block = block, .nested = nested});
  return all;
}

/// The values of a panel: [2 * words, places].
at::Tensor panel_values(const std::vector<std::uint32_t>& words, std::int64_t pairs) {
  const auto bits =
      at::from_blob(const_cast<std::uint32_t*>(words.data()), {pairs, tensor::kPanelStride, 2}, at::kBFloat16);
  return bits.permute({0, 2, 1}).reshape({2 * pairs, tensor::kPanelStride}).to(at::kFloat);
}

TEST(PackedPanels, HoldTheDequantisedValuesOfEveryTile) {
  if (!nn::kernels::has_bf16_dot()) GTEST_SKIP() << "this processor has no pairs of bfloat16";
  at::manual_seed(1);
  for (const auto& settings : all_settings())
    for (const std::int64_t columns : {32, 96, 576, 1216}) {
      const auto matrix = packed_normal(settings, 131, columns);
      const auto whole = tensor::unpack(*matrix, at::kBFloat16).to(at::kFloat);
      const auto& codec = dynamic_cast<const tensor::PanelCodec&>(*matrix->codec);
      for (const std::int64_t row : {0, 3, 100})
        for (const std::int64_t column : {std::int64_t{0}, columns - 32, columns / 64 * 32}) {
          SCOPED_TRACE(matrix->codec->name() + " " + std::to_string(columns) + " " + std::to_string(row) + " " +
                       std::to_string(column));
          const auto check = [&](const tensor::MatrixTile& tile, PairsOf pairs) {
            const bool along = pairs == PairsOf::kColumns;
            const auto count = ((along ? tile.columns : tile.rows) + 1) / 2;
            std::vector<std::uint32_t> words(static_cast<std::size_t>(count * tensor::kPanelStride));
            ASSERT_TRUE(codec.decode_panel(*matrix, tile, pairs, words.data()));
            auto expected = whole.narrow(0, tile.row, tile.rows).narrow(1, tile.column, tile.columns);
            if (along) expected = expected.t();
            const auto got = panel_values(words, count);
            EXPECT_TRUE(at::equal(got.narrow(0, 0, expected.size(0)).narrow(1, 0, expected.size(1)), expected));
            const auto after = got.narrow(0, expected.size(0), expected.size(0) % 2).narrow(1, 0, expected.size(1));
            EXPECT_TRUE(after.eq(0).all().item<bool>());
          };
          check({row, std::min<std::int64_t>(64, 131 - row), column, columns - column}, PairsOf::kColumns);
          check({row, 131 - row, column, std::min<std::int64_t>(64, columns - column)}, PairsOf::kRows);
        }
    }
}

struct Sizes {
  std::int64_t tokens, out, in;
};

class PackedProducts : public ::testing::TestWithParam<Sizes> {};

TEST_P(PackedProducts, HaveTheBitsOfProductsWithTheDequantisedMatrix) {
  at::manual_seed(2);
  const auto [tokens, out, in] = GetParam();
  for (const auto& settings : all_settings()) {
    const auto matrix = packed_normal(settings, out, in);
    SCOPED_TRACE(matrix->codec->name());
    const auto dtype = at::kBFloat16;
    const Weight packed(matrix), dense(tensor::unpack(*matrix, dtype));
    const auto x = at::randn({tokens, in}).to(dtype), g = at::randn({tokens, out}).to(dtype);
    // Where float32 is multiplied, tile by tile, a long inner dimension is added in parts.
    const auto expect_same = [](const at::Tensor& got, const at::Tensor& expected, std::int64_t inner) {
      const bool in_parts = inner > 1024 && !nn::kernels::has_bf16_gemm();
      EXPECT_TRUE(in_parts ? at::allclose(got, expected, 1.0 / 128, 1e-3) : at::equal(got, expected)) << inner;
    };
    expect_same(packed.product(x), dense.product(x), in);
    expect_same(packed.transposed_product(g), dense.transposed_product(g), out);
    for (const auto adapter : {at::kBFloat16, at::kFloat}) {
      const auto u = at::randn({tokens, 6}).to(adapter), v = at::randn({6, out}).to(adapter),
                 w = at::randn({6, in}).to(adapter);
      expect_same(packed.product(x, u, v), dense.product(x, u, v), in);
      expect_same(packed.transposed_product(g, u, w), dense.transposed_product(g, u, w), out);
    }
  }
}

// Whole panels and parts of one; rows that are no multiple of a block, of 32 and of two; more than one part of the
// inner dimension, more rows than are multiplied at a time.
INSTANTIATE_TEST_SUITE_P(Sizes, PackedProducts,
                         ::testing::Values(Sizes{32, 64, 64}, Sizes{40, 70, 96}, Sizes{33, 131, 160},
                                           Sizes{50, 66, 300}, Sizes{50, 48, 77}, Sizes{770, 40, 64},
                                           Sizes{48, 80, 1184}, Sizes{36, 1190, 96}));

class PackedRows : public ::testing::TestWithParam<Sizes> {};

TEST_P(PackedRows, MultiplyTheDequantisedValuesAndRoundOnce) {
  if (!nn::kernels::has_bf16_dot()) GTEST_SKIP() << "this processor has no pairs of bfloat16";
  at::manual_seed(6);
  const auto [tokens, out, in] = GetParam();
  const auto wide = at::randn({tokens, 2 * in}).to(at::kBFloat16);
  for (const auto& settings : all_settings()) {
    const auto matrix = packed_normal(settings, out, in);
    const Weight packed(matrix);
    const auto values = packed.dequantise(at::kBFloat16).to(at::kDouble);
    for (const auto& x : {at::randn({tokens, in}).to(at::kBFloat16), wide.narrow(1, in, in),
                          wide.t().contiguous().t().narrow(1, 0, in)}) {
      SCOPED_TRACE(matrix->codec->name());
      const auto u = at::randn({tokens, 6}).to(at::kBFloat16), v = at::randn({out, 6}).to(at::kBFloat16).t();
      const auto exact = x.to(at::kDouble).mm(values.t()), sum = exact + u.to(at::kDouble).mm(v.to(at::kDouble));
      // Half of bfloat16's last place, and float32's sums.
      const auto expect_rounded = [&](const at::Tensor& got, const at::Tensor& expected) {
        EXPECT_TRUE(at::allclose(got.to(at::kDouble), expected, 0x1p-8 * 1.001, 2e-4));
      };
      expect_rounded(packed.product(x), exact);
      expect_rounded(packed.product(x, u, v), sum);
      EXPECT_TRUE(at::equal(packed.product(x.narrow(0, tokens - 1, 1)), packed.product(x).narrow(0, tokens - 1, 1)))
          << "a row does not depend on the others";
      EXPECT_TRUE(
          at::equal(packed.product(x.to(at::kFloat)), Weight(packed.dequantise(at::kFloat)).product(x.to(at::kFloat))));
      const auto wide_u = u.to(at::kFloat), wide_v = v.to(at::kFloat);
      EXPECT_TRUE(at::allclose(packed.product(x, wide_u, wide_v).to(at::kDouble), sum, 0x1p-6, 0.05));
    }
  }
}

// One row of tokens and as many as there may be; rows that are no multiple of a block, of 32 and of two; more than are
// decoded at a time.
INSTANTIATE_TEST_SUITE_P(Sizes, PackedRows,
                         ::testing::Values(Sizes{1, 70, 96}, Sizes{2, 33, 640}, Sizes{3, 131, 300}, Sizes{4, 17, 64},
                                           Sizes{8, 80, 1184}, Sizes{5, 40, 77}, Sizes{2, 24, 20000}));

TEST(PackedPanels, GiveTheSameProductOnAnyNumberOfThreads) {
  at::manual_seed(3);
  const Weight weight(packed_normal({.nested = true}, 330, 416));
  const auto x = at::randn({64, 416}).to(at::kBFloat16), g = at::randn({64, 330}).to(at::kBFloat16);
  const auto y = weight.product(x), gx = weight.transposed_product(g), few = weight.product(x.narrow(0, 0, 3));
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const auto y3 = weight.product(x), gx3 = weight.transposed_product(g), few3 = weight.product(x.narrow(0, 0, 3));
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(y, y3));
  EXPECT_TRUE(at::equal(gx, gx3));
  EXPECT_TRUE(at::equal(few, few3));
}

TEST(PackedPanels, AdaptersOverFourBitsHaveTheBitsOfThoseOverTheDequantisedMatrix) {
  at::manual_seed(4);
  const auto matrix = packed_normal({.nested = true}, 96, 128);
  const Weight packed(matrix), dense(tensor::unpack(*matrix, at::kBFloat16));
  const auto a = at::randn({8, 128}).to(at::kBFloat16), b = at::randn({96, 8}).to(at::kBFloat16);
  const auto run = [&](const Weight& weight, bool dora) {
    std::vector<at::Tensor> leaves;
    for (const auto& t : {at::randn({2, 40, 128}).to(at::kBFloat16), a, b, at::rand({96}) + 0.5f})
      leaves.push_back(t.detach().clone().set_requires_grad(true));
    const nn::LowRank low{leaves[1], leaves[2], 2.0, 0};
    const auto y = dora ? nn::dora_linear(leaves[0], weight, {}, low, leaves[3], at::full({96}, 128.0f))
                        : nn::lora_linear(leaves[0], weight, {}, low);
    y.to(at::kFloat).pow(2).sum().backward();
    std::vector<at::Tensor> out{y.detach()};
    for (const auto& t : leaves) out.push_back(t.grad().defined() ? t.grad() : at::zeros({1}));
    return out;
  };
  for (const bool dora : {false, true}) {
    at::manual_seed(5);
    const auto got = run(packed, dora);
    at::manual_seed(5);
    const auto expected = run(dense, dora);
    for (std::size_t i = 0; i < got.size(); ++i) {
      // DoRA's norms take W A^T of the packed matrix as (A W^T)^T, whose sums have another order.
      const auto difference = (got[i].to(at::kFloat) - expected[i].to(at::kFloat)).abs().max().item<float>();
      EXPECT_LE(difference, dora ? 0.02f * expected[i].abs().max().item<float>() : 0.0f) << dora << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::quant
