#include "quant/grouped_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
  double weight(std::int64_t row, std::int64_t column) const {
    const auto group = column / p.group_size;
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
          double worst = 0;  // of the sum of magnitudes
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t f = 0; f < few; ++f) {
              double sum = 0, magnitudes = 0;
              for (std::int64_t c = 0; c < any.p.columns; ++c) {
                const double product = any.weight(r, c) * any.x[c * few + f];
                sum += product, magnitudes += std::abs(product);
              }
              worst = std::max(worst, std::abs(sum - y[f * rows + r]) / magnitudes);
            }
          EXPECT_LT(worst, 2e-6) << (layout == WordLayout::kGptq ? "gptq " : "awq ") << rows << ' ' << group << ' '
                                 << few;
        }
}

}  // namespace
}  // namespace tessera::quant
