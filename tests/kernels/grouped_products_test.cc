#include "quant/grouped_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace tessera::quant {
namespace {

/// A matrix of any codes and zero points, and x.
struct AnyProduct {
  AnyProduct(WordLayout layout, std::int64_t rows, std::int64_t columns, std::int64_t group, std::int64_t few)
      : groups((columns + group - 1) / group),
        words(static_cast<std::size_t>(rows * columns / 8)),
        zeros(static_cast<std::size_t>(groups * rows / 8)),
        scales(static_cast<std::size_t>(groups * rows)),
        x(static_cast<std::size_t>(columns * few)),
        x_sums(static_cast<std::size_t>(groups * few)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* codes : {&words, &zeros})
      for (auto& word : *codes) word = static_cast<std::int32_t>(random());
    for (auto* values : {&scales, &x})
      for (auto& value : *values) value = normal(random);
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t f = 0; f < few; ++f) x_sums[c / group * few + f] += x[c * few + f];
    p = {.layout = layout,
         .zeros_less_one = layout == WordLayout::kGptq,
         .scale_dtype = ScaleDtype::kFloat,
         .rows = rows,
         .columns = columns,
         .group_size = group,
         .words = words.data(),
         .zeros = zeros.data(),
         .scales = scales.data(),
         .few = few,
         .x = x.data(),
         .x_sums = x_sums.data()};
  }
  static std::int32_t code(std::int32_t word, int place) { return static_cast<std::uint32_t>(word) >> 4 * place & 15; }
  double weight(std::int64_t row, std::int64_t column, std::int64_t group) const {
    const int of_row = static_cast<int>(row % 8);
    const auto zero = zeros[group * (p.rows / 8) + row / 8];
    if (p.layout == WordLayout::kGptq)
      return double{scales[group * p.rows + row]} *
             (code(words[column / 8 * p.rows + row], static_cast<int>(column % 8)) - ((code(zero, of_row) + 1) & 15));
    constexpr int kPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};
    return double{scales[group * p.rows + row]} *
           (code(words[column * (p.rows / 8) + row / 8], kPlace[of_row]) - code(zero, kPlace[of_row]));
  }

  std::int64_t groups;
  std::vector<std::int32_t> words, zeros;
  std::vector<float> scales, x, x_sums;
  GroupedProduct p;
};

/// How far y is from the product in double, as a part of the sum of magnitudes; the worst of all. group_of: of a
/// column.
template <class GroupOf>
double worst_error(const AnyProduct& any, const std::vector<float>& y, const GroupOf& group_of,
                   const std::vector<float>& x) {
  double worst = 0;
  for (std::int64_t r = 0; r < any.p.rows; ++r)
    for (std::int64_t f = 0; f < any.p.few; ++f) {
      double sum = 0, magnitudes = 0;
      for (std::int64_t c = 0; c < any.p.columns; ++c) {
        const double product = any.weight(r, c, group_of(c)) * x[c * any.p.few + f];
        sum += product, magnitudes += std::abs(product);
      }
      worst = std::max(worst, std::abs(sum - y[f * any.p.rows + r]) / magnitudes);
    }
  return worst;
}

TEST(GroupedProducts, AreThoseInDouble) {
  if (!has_grouped_products()) GTEST_SKIP() << "this level of instructions has none";
  for (const auto layout : {WordLayout::kGptq, WordLayout::kAwq})
    for (const std::int64_t rows : {8, 24, 64, 136})
      for (const std::int64_t group : {8, 40, 64, 192})
        for (std::int64_t few = 1; few <= kMostGroupedRows; few *= 2) {
          const AnyProduct any(layout, rows, 192, group, few);
          std::vector<float> y(static_cast<std::size_t>(few * rows), 7.0f);
          const auto half = rows / 32 * 16;
          if (half > 0) grouped_product(any.p, 0, half, y.data());
          grouped_product(any.p, half, rows - half, y.data());
          const auto worst = worst_error(any, y, [&](auto column) { return column / group; }, any.x);
          EXPECT_LT(worst, 2e-6) << (layout == WordLayout::kGptq ? "gptq " : "awq ") << rows << ' ' << group << ' '
                                 << few;
        }
}

TEST(GroupedProducts, OfInputsInAnyOrderAreThoseInDouble) {
  if (!has_grouped_products()) GTEST_SKIP() << "this level of instructions has none";
  for (const std::int64_t rows : {8, 24, 64, 136})
    for (std::int64_t few = 1; few <= kMostGroupedRows; few *= 2) {
      AnyProduct any(WordLayout::kGptq, rows, 192, 64, few);
      std::vector<std::int32_t> order(192);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(2));
      const std::vector<std::int64_t> begins{0, 5, 5, 192};  // groups of any sizes
      std::vector<std::int64_t> group_of(192);
      std::vector<float> ordered(any.x.size());
      std::fill(any.x_sums.begin(), any.x_sums.end(), 0.0f);
      for (std::int64_t at = 0; at < 192; ++at) {
        group_of[order[at]] = at < 5 ? 0 : 2;
        for (std::int64_t f = 0; f < few; ++f) {
          ordered[at * few + f] = any.x[order[at] * few + f];
          any.x_sums[group_of[order[at]] * few + f] += ordered[at * few + f];
        }
      }
      any.p.x = ordered.data(), any.p.order = order.data(), any.p.begins = begins.data(), any.p.groups = 3;
      std::vector<float> y(static_cast<std::size_t>(few * rows), 7.0f);
      grouped_product(any.p, 0, rows, y.data());
      EXPECT_LT(worst_error(any, y, [&](auto column) { return group_of[column]; }, any.x), 2e-6) << rows << ' ' << few;
    }
}

}  // namespace
}  // namespace tessera::quant
