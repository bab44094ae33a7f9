// Panels of 64 tokens: turning, sparse products, Fourier transforms and products of spectra, against loops in double.
#include <gtest/gtest.h>

#include <complex>
#include <vector>

#include "kernels/near_double.h"
#include "nn/kernels/panel_fourier.h"
#include "nn/kernels/token_panels.h"

namespace tessera::nn::kernels {
namespace {

constexpr std::int64_t kHalf = kPanelTokens / 2;

std::vector<float> panel_of_waves(std::int64_t rows, float step) {
  return waves(rows * kPanelTokens, step, 1.0F);
}

/// Number `token`, or with its partner the complex one, of a row.
std::complex<double> at(const std::vector<float>& panel, std::int64_t row, std::int64_t token) {
  return {panel[row * kPanelTokens + token], panel[row * kPanelTokens + token + kHalf]};
}

template <class T>
class Turned : public testing::Test {};
using RowTypes = testing::Types<float, std::uint16_t>;
TYPED_TEST_SUITE(Turned, RowTypes);

TYPED_TEST(Turned, RowsBecomeColumnsAndAreAddedBack) {
  constexpr std::int64_t kPast = 3;  // elements of a row that are not of the panel
  for (const std::int64_t width : {1, 5, 16, 32, 37, 96}) {
    for (const std::int64_t tokens : {1, 3, 4, 30, 63, 64}) {
      const std::int64_t stride = width + kPast;
      const auto rows = row_of<TypeParam>(waves(tokens * stride, 0.37F));
      std::vector<float> panel(static_cast<std::size_t>(width * kPanelTokens), 7.0F);
      turn_to_panel(TokenRows<const TypeParam>{rows.data(), tokens, width, stride}, panel.data());
      for (std::int64_t i = 0; i < width; ++i)
        for (std::int64_t t = 0; t < kPanelTokens; ++t)
          ASSERT_EQ(panel[i * kPanelTokens + t], t < tokens ? to_float(rows[t * stride + i]) : 0.0F);
      const auto added = panel_of_waves(width, 0.13F);
      auto sums = rows;
      add_panel(added.data(), TokenRows<TypeParam>{sums.data(), tokens, width, stride});
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < stride; ++i) {
          const auto before = rows[t * stride + i];
          const float sum = i < width ? to_float(before) + added[i * kPanelTokens + t] : to_float(before);
          ASSERT_EQ(sums[t * stride + i], row_of<TypeParam>({sum})[0]) << width << " x " << tokens;
        }
      }
    }
  }
}

TEST(Sparse, LinesAreSumsOfTheirNumbersTimesRows) {
  const std::vector<std::int64_t> begin = {0, 3, 3, 4, 13};
  const std::vector<std::int32_t> other = {4, 0, 1, 2, 0, 1, 2, 3, 4, 0, 0, 3, 2},
                                  number = {2, 5, 0, 1, 3, 4, 6, 7, 8, 9, 10, 11, 12};
  const SparseLines lines{4, begin.data(), other.data(), number.data()};
  const auto numbers = waves(13, 0.9F), x = panel_of_waves(5, 0.21F), g = panel_of_waves(4, 0.17F);
  std::vector<float> y(4 * kPanelTokens, 7.0F), sums(13, 1.0F);
  sparse_lines(lines, 0, 4, numbers.data(), x.data(), y.data());
  sparse_dots(lines, 0, 6, x.data(), g.data(), sums.data());  // in two parts, as of two threads
  sparse_dots(lines, 6, 13, x.data(), g.data(), sums.data());
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t t = 0; t < kPanelTokens; ++t) {
      double sum = 0;
      for (auto k = begin[i]; k < begin[i + 1]; ++k)
        sum += double{numbers[number[k]]} * double{x[other[k] * kPanelTokens + t]};
      EXPECT_NEAR(y[i * kPanelTokens + t], sum, 1e-5);
    }
    for (auto k = begin[i]; k < begin[i + 1]; ++k) {
      double sum = 1;
      for (std::int64_t t = 0; t < kPanelTokens; ++t)
        sum += double{x[other[k] * kPanelTokens + t]} * double{g[i * kPanelTokens + t]};
      EXPECT_NEAR(sums[number[k]], sum, 1e-5) << k;
    }
  }
}

class Lengths : public testing::TestWithParam<std::int64_t> {};

TEST_P(Lengths, TransformsAreThoseOfTheDefinition) {
  const std::int64_t length = GetParam(), from = 2, to = 3;  // rows between those of a signal, of a result
  ASSERT_TRUE(PanelFourier::takes(length));
  const PanelFourier fourier(length);
  const auto x = panel_of_waves(length * from, 0.29F);
  std::vector<float> y(static_cast<std::size_t>(length * to * kPanelTokens), 7.0F);
  std::vector<float> scratch(static_cast<std::size_t>(length * kPanelTokens), 1e30F);
  for (const bool inverse : {false, true}) {
    fourier.transform({x.data(), from}, {y.data(), to}, scratch.data(), inverse);
    for (std::int64_t f = 0; f < length; ++f) {
      for (const std::int64_t token : {0, 17, 31}) {
        std::complex<double> sum = 0;
        for (std::int64_t j = 0; j < length; ++j)
          sum += at(x, j * from, token) *
                 std::polar(1.0, (inverse ? 2 : -2) * M_PI * double(f * j % length) / double(length));
        const auto found = at(y, f * to, token);
        EXPECT_NEAR(found.real(), sum.real(), 1e-5 * std::sqrt(double(length))) << f;
        EXPECT_NEAR(found.imag(), sum.imag(), 1e-5 * std::sqrt(double(length))) << f;
      }
      for (std::int64_t between = 1; between < to && f + 1 < length; ++between)
        ASSERT_EQ(y[(f * to + between) * kPanelTokens], 7.0F);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fourier, Lengths,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 30, 43, 61, 64, 122, 128, 256, 768));

TEST(Fourier, LengthsWithALargePrimeFactorAreNotTaken) {
  EXPECT_FALSE(PanelFourier::takes(67));
  EXPECT_FALSE(PanelFourier::takes(4 * 32003));
}

TEST(Spectra, ProductsAndTheirGradientsAreSums) {
  const std::int64_t frequencies = 3;
  for (const std::int64_t rows : {1, 2, 4}) {
    for (const std::int64_t columns : {1, 3, 4}) {
      const auto matrices = waves(2 * frequencies * rows * columns, 0.77F);
      const auto matrix = [&](std::int64_t f, std::int64_t o, std::int64_t i) {
        const auto* number = matrices.data() + 2 * ((f * rows + o) * columns + i);
        return std::complex<double>(number[0], number[1]);
      };
      const auto x = panel_of_waves(frequencies * columns, 0.31F), g = panel_of_waves(frequencies * rows, 0.19F);
      std::vector<float> y(g.size()), back(x.size()), sums(matrices.size(), 1.0F);
      spectral_products({matrices.data(), rows, columns, false, true}, 0, frequencies, x.data(), y.data());
      spectral_products({matrices.data(), rows, columns, true, false}, 0, frequencies, g.data(), back.data());
      spectral_gradients(rows, columns, 0, 2, x.data(), g.data(), sums.data());
      spectral_gradients(rows, columns, 2, frequencies, x.data(), g.data(), sums.data());
      for (std::int64_t f = 0; f < frequencies; ++f) {
        for (const std::int64_t token : {0, 13, 31}) {
          for (std::int64_t o = 0; o < rows; ++o) {
            std::complex<double> sum = 0;
            for (std::int64_t i = 0; i < columns; ++i)
              sum += std::conj(matrix(f, o, i)) * at(x, f * columns + i, token);
            EXPECT_NEAR(std::abs(at(y, f * rows + o, token) - sum), 0, 1e-5);
          }
          for (std::int64_t i = 0; i < columns; ++i) {
            std::complex<double> sum = 0;
            for (std::int64_t o = 0; o < rows; ++o) sum += matrix(f, o, i) * at(g, f * rows + o, token);
            EXPECT_NEAR(std::abs(at(back, f * columns + i, token) - sum), 0, 1e-5);
          }
        }
        for (std::int64_t o = 0; o < rows; ++o) {
          for (std::int64_t i = 0; i < columns; ++i) {
            std::complex<double> sum(1, 1);
            for (std::int64_t t = 0; t < kHalf; ++t)
              sum += at(x, f * columns + i, t) * std::conj(at(g, f * rows + o, t));
            const auto* found = sums.data() + 2 * ((f * rows + o) * columns + i);
            EXPECT_NEAR(std::abs(std::complex<double>(found[0], found[1]) - sum), 0, 1e-4);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::nn::kernels
