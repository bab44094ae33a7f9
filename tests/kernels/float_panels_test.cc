#include "nn/kernels/float_panels.h"

#include <gtest/gtest.h>

#include <functional>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/near_double.h"
#include "nn/kernels/row_kernels.h"

namespace tessera::nn::kernels {
namespace {

/// n whole numbers from -7 to 7: products and their sums are exact.
std::vector<float> whole_numbers(std::int64_t n, float step) {
  auto x = waves(n, step, 7.9f);
  for (float& v : x) v = std::trunc(v);
  return x;
}

/// Rows, depth, columns less than those of a panel.
class FloatPanels : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, std::int64_t>> {};

TEST_P(FloatPanels, SumsGrowByTheProductInEveryLayout) {
  const auto [rows, depth, missing] = GetParam();
  const auto width = float_panel_columns(), columns = width - missing, beside = width + 3;
  ASSERT_LE(width, kMostFloatPanelColumns);
  const auto a = whole_numbers(rows * depth, 0.7f), b = whole_numbers(depth * columns, 1.3f);
  std::vector<float> a_columns(a.size()), b_columns(b.size()), expected(static_cast<std::size_t>(rows * beside), 5.0f);
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t r = 0; r < rows; ++r) a_columns.at(k * rows + r) = a.at(r * depth + k);
    for (std::int64_t n = 0; n < columns; ++n) b_columns.at(n * depth + k) = b.at(k * columns + n);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t n = 0; n < columns; ++n)
        expected.at(r * beside + n) += a.at(r * depth + k) * b.at(k * columns + n);
  }
  std::vector<std::uint16_t> a_narrow, a_columns_narrow;  // whole numbers below 2^8: nothing is rounded
  for (const float x : a) a_narrow.push_back(to_bfloat16(x));
  for (const float x : a_columns) a_columns_narrow.push_back(to_bfloat16(x));
  const float foreign = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::function<void(float*)>> packs = {
      [&](float* to) { pack_rows(a.data(), depth, rows, depth, to); },
      [&](float* to) { pack_columns(a_columns.data(), rows, rows, depth, to); },
      [&](float* to) { pack_rows(a_narrow.data(), depth, rows, depth, to); },
      [&](float* to) { pack_columns(a_columns_narrow.data(), rows, rows, depth, to); }};
  for (const auto& pack : packs)
    for (const bool right_by_columns : {false, true}) {
      std::vector<float> left(static_cast<std::size_t>(rows * depth + kPackedSlack), foreign);
      std::vector<float> panel(static_cast<std::size_t>(depth * width + 1), foreign), sums(expected.size(), 5.0f);
      pack(left.data());
      right_by_columns ? panel_of_columns(b_columns.data(), depth, depth, columns, panel.data())
                       : panel_of_rows(b.data(), columns, depth, columns, panel.data());
      EXPECT_TRUE(std::isnan(panel.back())) << "beyond the panel";
      Prefetch none;
      panel_product(left.data(), rows, panel.data(), depth, {sums.data(), beside, true}, none, 0);
      EXPECT_EQ(sums, expected);
      std::vector<float> alone(expected.size(), foreign);
      panel_product(left.data(), rows, panel.data(), depth, {alone.data(), beside, false}, none, 0);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t n = 0; n < width; ++n) EXPECT_EQ(alone.at(r * beside + n) + 5, sums.at(r * beside + n));
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, FloatPanels,
                         testing::Combine(testing::Values(1, 2, 5, 6, 7, 11, 12, 13, 31),
                                          testing::Values(1, 3, 4, 9, 64), testing::Values(0, 1, 4, 7)));

TEST(RowKernels, Bfloat16IsWidenedAndRoundedToNearest) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = waves(1000, 0.37f, 1e4f);
  x.insert(x.end(), {0.0f, -0.0f, infinity, -infinity, std::numeric_limits<float>::max(), 0x1.01p0f, 0x1.03p0f,
                     std::numeric_limits<float>::denorm_min()});
  std::vector<std::uint16_t> narrow;
  for (const float v : x) narrow.push_back(to_bfloat16(v));
  std::vector<float> widened(x.size()), rounded = x;
  widen(narrow.data(), widened.data(), static_cast<std::int64_t>(x.size()));
  round_to_bfloat16(rounded.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(widened[i], to_float(narrow[i]));
    EXPECT_EQ(rounded[i], widened[i]);
  }
  float not_a_number = nan;
  round_to_bfloat16(&not_a_number, 1);
  EXPECT_TRUE(std::isnan(not_a_number));
}

TEST(RowKernels, Float16IsRoundedToNearest) {
  // Between neighbours: halves of steps and what lies beside them, of normal numbers and of those below 2^-14.
  std::vector<std::pair<float, float>> cases = {
      {0.0f, 0.0f},
      {1.0f, 1.0f},
      {0x1.002p0f, 0x1.0p0f},
      {0x1.006p0f, 0x1.008p0f},
      {0x1.002002p0f, 0x1.004p0f},
      {0x1.3333p-3f, 0x1.334p-3f},
      {0x1.ffep-15f, 0x1.0p-14f},
      {0x1.8p-24f, 0x1.0p-23f},
      {0x1.0p-25f, 0.0f},
      {0x1.000002p-25f, 0x1.0p-24f},
      {0x1.0p-60f, 0.0f},
      {65504.0f, 65504.0f},
      {65519.0f, 65504.0f},
      {65520.0f, std::numeric_limits<float>::infinity()},
      {std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()},
      {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()}};
  std::vector<float> x;
  for (const auto& [given, expected] : cases) x.insert(x.end(), {given, -given});
  round_to_float16(x.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(x[2 * i], cases[i].second) << cases[i].first;
    EXPECT_EQ(x[2 * i + 1], -cases[i].second) << -cases[i].first;
  }
  float not_a_number = std::numeric_limits<float>::quiet_NaN();
  round_to_float16(&not_a_number, 1);
  EXPECT_TRUE(std::isnan(not_a_number));
}

}  // namespace
}  // namespace tessera::nn::kernels
