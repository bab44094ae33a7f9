// Losses and gradients of heads whose classes take several chunks, with more rows than are taken at a time.
#include "nn/ops/label_scores.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nn/ops/linear_cross_entropy.h"
#include "support/compare.h"

namespace tessera::nn {
namespace {

struct HeadTrains {
  bool weight, bias;
};

struct LossCase {
  std::int64_t rows, dim, classes;
  at::ScalarType dtype;
  HeadTrains trains;
  CrossEntropyOptions options;
};

at::Tensor sines(std::int64_t a, std::int64_t b, double scale) {
  const auto i = at::arange(a * b, at::kDouble).view({a, b});
  return at::sin(i * i * 0.37 + i) * scale;
}

at::Tensor labels_of(const LossCase& c) {
  auto labels = (at::arange(c.rows, at::kLong) * 1237) % c.classes;
  labels[c.rows / 2] = -100;
  return labels;
}

/// The same, in float64, with all logits.
at::Tensor exact_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& labels, const CrossEntropyOptions& options) {
  auto logits = (at::matmul(hidden, weight.t()) + bias) * options.scale;
  if (options.softcap > 0) logits = at::tanh(logits / options.softcap) * options.softcap;
  return sum_token_losses(logits, labels, options.token_loss) / options.normalizer;
}

void expect_definition(const LossCase& c, double tolerance) {
  const auto labels = labels_of(c);
  std::vector<at::Tensor> ours, exact;
  for (const auto& values : {sines(c.rows, c.dim, 1.0), sines(c.classes, c.dim, 0.5), sines(1, c.classes, 0.3)}) {
    ours.push_back(values.to(c.dtype));
    exact.push_back(ours.back().to(at::kDouble).set_requires_grad(true));
  }
  ours[2] = ours[2].view({-1});
  const bool trains[] = {true, c.trains.weight, c.trains.bias};
  for (int i = 0; i < 3; ++i) ours[i].set_requires_grad(trains[i]);
  auto options = c.options;
  options.bias = ours[2];
  options.loss_dtype = at::kFloat;
  const auto loss = linear_cross_entropy(ours[0], ours[1], labels, options);
  const auto expected = exact_loss(exact[0], exact[1], exact[2], labels, options);
  test::expect_close(loss.to(at::kDouble), expected, tolerance, "loss");
  loss.backward();
  expected.backward();
  for (int i = 0; i < 3; ++i) {
    if (!trains[i]) continue;
    const auto actual = ours[i].grad().to(at::kDouble), wanted = exact[i].grad().view(ours[i].sizes());
    EXPECT_LT((actual - wanted).abs().max().item<double>(), tolerance * wanted.abs().max().item<double>())
        << "gradient " << i << " of " << c.rows << " rows, " << c.classes << " classes, " << c.dtype;
  }
}

TEST(LabelScores, AreThoseOfTheDefinitionWhateverTrainsAndHoweverManyRowsAndClassesThereAre) {
  for (const auto& trains :
       {HeadTrains{false, false}, HeadTrains{true, false}, HeadTrains{false, true}, HeadTrains{true, true}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 4e-3 : 2e-2;
      expect_definition({7, 16, 1024, dtype, trains, {}}, tolerance);
      expect_definition({40, 16, 1025, dtype, trains, {.scale = 0.7}}, tolerance);
      expect_definition({600, 32, 2100, dtype, trains, {.normalizer = 100}}, tolerance);
      expect_definition({33, 32, 3000, dtype, trains, {.scale = 1.3, .softcap = 2.0}}, tolerance);
    }
  }
}

TEST(LabelScores, OfOtherLosses) {
  for (const auto& trains : {HeadTrains{false, false}, HeadTrains{true, true}}) {
    expect_definition({50, 16, 1500, at::kFloat, trains, {.token_loss = {.label_smoothing = 0.2}}}, 1e-5);
    expect_definition({50, 16, 1500, at::kFloat, trains, {.softcap = 2.0, .token_loss = {.label_smoothing = 0.2}}},
                      1e-5);
    expect_definition({50, 16, 1500, at::kFloat, trains, {.scale = 0.5, .token_loss = {.kind = TokenLoss::Kind::kDft}}},
                      1e-5);
  }
}

// 1 - p is 1e-5: where it is made of two numbers near 1, rounding leaves nothing of it in 16 bits.
TEST(LabelScores, AGradientOfALikelyLabelKeepsItsDigits) {
  for (const bool trains : {false, true}) {
    const auto hidden = at::ones({2, 8}, at::kBFloat16).set_requires_grad(true);
    auto weight = sines(1300, 8, 0.125);
    weight[1100] = 2.375;
    weight = weight.to(at::kBFloat16).set_requires_grad(trains);
    const auto labels = at::full({2}, 1100, at::kLong);
    linear_cross_entropy(hidden, weight, labels, {.loss_dtype = at::kFloat}).backward();
    const auto exact = hidden.detach().to(at::kDouble).set_requires_grad(true);
    exact_loss(exact, weight.detach().to(at::kDouble), at::zeros({1300}, at::kDouble), labels, {}).backward();
    EXPECT_LT(exact.grad().abs().max().item<double>(), 2e-4);
    EXPECT_LT((hidden.grad().to(at::kDouble) - exact.grad()).abs().max().item<double>(),
              0.05 * exact.grad().abs().max().item<double>());
  }
}

TEST(LabelScores, PredictTheFirstOfTheLargestLogits) {
  const auto hidden = at::ones({3, 2});
  auto weight = at::zeros({2500, 2});
  weight[1030] = 1.0, weight[1031] = 1.0, weight[2400] = 1.0;
  at::Tensor predictions;
  linear_cross_entropy(hidden, weight, at::tensor({5, 2400, -100}, at::kLong), {.predictions = &predictions});
  EXPECT_TRUE(predictions.eq(1030).all().item<bool>());
}

TEST(LabelScores, ANumberThatIsNoneReachesTheLoss) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const bool trains : {false, true}) {
    for (const auto& [value, expected] :
         {std::pair{std::nan(""), std::nan("")}, {infinity, std::nan("")}, {-infinity, 0.0}}) {
      auto bias = at::zeros({1500});
      bias[1200] = value;
      const auto hidden = at::zeros({2, 4}).set_requires_grad(true);
      const auto weight = at::zeros({1500, 4}).set_requires_grad(trains);
      const auto loss =
          linear_cross_entropy(hidden, weight, at::tensor({3, 1400}, at::kLong), {.bias = bias}).item<double>();
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(loss)) << value;
      } else {
        EXPECT_NEAR(loss, 2 * std::log(1499.0), 1e-5);  // the class is not there
      }
    }
  }
}

TEST(LabelScores, OfAHeadWithOneClassAreZero) {
  const auto hidden = at::ones({3, 4}).set_requires_grad(true);
  const auto loss = linear_cross_entropy(hidden, at::ones({1, 4}), at::zeros({3}, at::kLong), {});
  EXPECT_EQ(loss.item<float>(), 0.0f);
  loss.backward();
  EXPECT_EQ(hidden.grad().abs().max().item<float>(), 0.0f);
}

// Which rows are computed together must not show: a batch's rows are the same on any number of ranks.
TEST(LabelScores, ARowIsTheSameAmongOthers) {
  const auto hidden = sines(700, 24, 1.0).to(at::kBFloat16), weight = sines(2200, 24, 0.5).to(at::kBFloat16);
  const auto labels = (at::arange(700, at::kLong) * 31) % 2200;
  const auto gradient = [&](std::int64_t first, std::int64_t count) {
    const auto part = hidden.narrow(0, first, count).clone().set_requires_grad(true);
    linear_cross_entropy(part, weight, labels.narrow(0, first, count), {}).backward();
    return part.grad();
  };
  const auto whole = gradient(0, 700);
  EXPECT_TRUE(at::equal(whole.narrow(0, 500, 90), gradient(500, 90)));
  EXPECT_TRUE(at::equal(whole.narrow(0, 10, 300), gradient(10, 300)));
}

}  // namespace
}  // namespace tessera::nn
