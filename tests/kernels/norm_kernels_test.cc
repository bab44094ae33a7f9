// Norms of rows and their gradients against double, for float32 and bfloat16.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/near_double.h"
#include "nn/kernels/norm_kernels.h"
#include "nn/kernels/row_kernels.h"

namespace tessera::nn::kernels {
namespace {

constexpr double kEps = 1e-5;

struct Exact {
  std::vector<double> y, gx, gw, gb;
  double mean, rstd;
};

template <class T>
Exact exact(const std::vector<T>& x, const std::vector<T>& g, const float* w, const float* b) {
  const auto n = x.size();
  Exact e{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n), std::vector<double>(n), 0, 0};
  for (const auto v : x) e.mean += to_float(v) / static_cast<double>(n);
  double variance = 0;
  for (const auto v : x) variance += std::pow(to_float(v) - e.mean, 2) / static_cast<double>(n);
  e.rstd = 1 / std::sqrt(variance + kEps);
  double sum = 0, with_x = 0;
  const auto unit = [&](std::size_t i) { return (to_float(x[i]) - e.mean) * e.rstd; };
  const auto weight = [&](std::size_t i) { return w ? double{w[i]} : 1.0; };
  for (std::size_t i = 0; i < n; ++i) {
    e.y[i] = unit(i) * weight(i) + (b ? b[i] : 0.0f);
    e.gw[i] = to_float(g[i]) * unit(i);
    e.gb[i] = to_float(g[i]);
    sum += to_float(g[i]) * weight(i) / static_cast<double>(n);
    with_x += to_float(g[i]) * weight(i) * unit(i) / static_cast<double>(n);
  }
  for (std::size_t i = 0; i < n; ++i) e.gx[i] = e.rstd * (to_float(g[i]) * weight(i) - sum - unit(i) * with_x);
  return e;
}

template <class T>
void expect_layer_norm(std::int64_t n, bool affine) {
  auto wide = waves(n, 0.7f);
  for (auto& v : wide) v += 5.0f;  // a mean that a one-pass variance would suffer from
  const auto x = row_of<T>(wide), g = row_of<T>(waves(n, 0.3f, 2.0f));
  const auto weight = waves(n, 0.9f, 1.5f), bias = waves(n, 1.7f, 0.5f);
  const float *w = affine ? weight.data() : nullptr, *b = affine ? bias.data() : nullptr;
  const auto e = exact(x, g, w, b);
  const auto size = static_cast<std::size_t>(n);
  std::vector<T> y(size + 1, T{3}), gx(y);
  std::vector<float> gw(size, 1.0f), gb(size, 2.0f);
  const auto m = layer_norm(LayerNormRow<T>{x.data(), w, b, y.data(), n, static_cast<float>(kEps)});
  layer_norm_gradient(LayerNormGradientRow<T>{g.data(), x.data(), w, m, gx.data(), gw.data(), gb.data(), n});
  EXPECT_NEAR(m.mean, e.mean, 2e-6);
  EXPECT_NEAR(m.rstd, e.rstd, 2e-6 * e.rstd);
  const double scale = 1e-5 * std::max(1.0, e.rstd);
  for (std::size_t i = 0; i < size; ++i) {
    EXPECT_NEAR(to_float(y[i]), e.y[i], rounding<T>(0) * std::abs(e.y[i]) + scale);
    EXPECT_NEAR(to_float(gx[i]), e.gx[i], rounding<T>(0) * std::abs(e.gx[i]) + scale);
    EXPECT_NEAR(gw[i], 1 + e.gw[i], scale) << "added to what was there";
    EXPECT_NEAR(gb[i], 2 + e.gb[i], scale);
  }
  EXPECT_EQ(y.back(), T{3});
  EXPECT_EQ(gx.back(), T{3});
}

class NormKernels : public testing::TestWithParam<std::int64_t> {};

TEST_P(NormKernels, LayerNormEqualsItsDefinition) {
  for (const bool affine : {true, false}) {
    expect_layer_norm<float>(GetParam(), affine);
    expect_layer_norm<std::uint16_t>(GetParam(), affine);
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, NormKernels, testing::Values(2, 15, 33, 768, 1001));

/// rms_norm() and its gradients of rows of T, against their definition in double. One element behind each row must
/// stay.
template <class T>
void expect_rms_norm(std::int64_t n) {
  const auto x = row_of<T>(waves(n, 0.7f)), gy = row_of<T>(waves(n, 0.3f));
  const auto w = waves(n, 0.9f);
  const auto size = static_cast<std::size_t>(n);
  std::vector<T> y(size + 1, T{3}), gx(size + 1, T{3});
  std::vector<float> gw(size, 1.0f);
  const float rstd = rms_norm(RmsNormRow<T>{x.data(), w.data(), y.data(), n, 1e-6f});
  rms_norm_gradient(RmsNormGradientRow<T>{gy.data(), x.data(), w.data(), rstd, gx.data(), gw.data(), n});
  double squares = 0, with_x = 0;
  for (const T v : x) squares += double{to_float(v)} * to_float(v);
  const double exact = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-6);
  for (std::size_t i = 0; i < size; ++i)
    with_x += double{to_float(gy[i])} * w[i] * to_float(x[i]) * exact / static_cast<double>(n);
  for (std::size_t i = 0; i < size; ++i) {
    const double at = to_float(x[i]), g = to_float(gy[i]);
    const double expected = w[i] * at * exact, gradient = exact * (g * w[i] - at * exact * with_x);
    EXPECT_NEAR(to_float(y[i]), expected, rounding<T>(0) * std::abs(expected) + 1e-5);
    EXPECT_NEAR(to_float(gx[i]), gradient, rounding<T>(0) * std::abs(gradient) + 1e-5);
    EXPECT_NEAR(gw[i], 1 + g * at * exact, 1e-5) << "added to what was there";
  }
  EXPECT_EQ(y.back(), T{3});
  EXPECT_EQ(gx.back(), T{3});
}

TEST_P(NormKernels, RmsNormEqualsItsDefinition) {
  expect_rms_norm<float>(GetParam());
  expect_rms_norm<std::uint16_t>(GetParam());
}

TEST(RowKernels, AddRoundsOnce) {
  const std::int64_t n = 67;
  const auto a = waves(n, 0.7f), b = waves(n, 0.3f);
  const auto small_a = row_of<std::uint16_t>(a), small_b = row_of<std::uint16_t>(b);
  std::vector<float> y(a.size());
  std::vector<std::uint16_t> small_y(a.size());
  add(a.data(), b.data(), y.data(), n);
  add(small_a.data(), small_b.data(), small_y.data(), n);
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(y[i], a[i] + b[i]);
    EXPECT_EQ(small_y[i], row_of<std::uint16_t>(std::vector<float>{to_float(small_a[i]) + to_float(small_b[i])})[0]);
  }
}

TEST(RowKernels, WidenAndNarrowAreEachOthersInverseAndRoundToEven) {
  const std::int64_t n = 67;
  const auto x = waves(n, 0.7f);
  const auto narrow_x = row_of<std::uint16_t>(x);
  std::vector<std::uint16_t> narrowed(x.size());
  std::vector<float> wide(x.size());
  narrow(x.data(), narrowed.data(), n);
  EXPECT_EQ(narrowed, narrow_x);
  widen(narrowed.data(), wide.data(), n);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(wide[i], to_float(narrow_x[i]));
  const std::vector<float> ties{1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f};
  narrow(ties.data(), narrowed.data(), 2);
  EXPECT_EQ(to_float(narrowed[0]), 1.0f);
  EXPECT_EQ(to_float(narrowed[1]), 1.0f + 0x1p-6f);
}

TEST(RowKernels, MasksAreTheSameAtEveryLevel) {
  const std::int64_t n = 50;
  const std::vector<float> ones(static_cast<std::size_t>(n), 1.0f);
  std::vector<float> y(ones);
  const auto mask = make_mask(0.25, {7, 11});
  dropout(ones.data(), y.data(), n, 3, mask);
  for (std::size_t i = 0; i < y.size(); ++i)
    EXPECT_EQ(y[i], tensor::random_bits({7, 11}, static_cast<std::uint32_t>(i) + 3) >= 1u << 30 ? mask.scale : 0.0f);
}

TEST(RowKernels, AddRowAddsToWhatIsThere) {
  const auto x = waves(37, 0.7f);
  const auto narrow_x = row_of<std::uint16_t>(x);
  std::vector<float> sums(x.size(), 1.0f);
  add_row(x.data(), sums.data(), 37);
  add_row(narrow_x.data(), sums.data(), 37);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_FLOAT_EQ(sums[i], 1.0f + x[i] + to_float(narrow_x[i]));
}

}  // namespace
}  // namespace tessera::nn::kernels
