#include "nn/ops/token_log_probs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

struct Problem {
  at::Tensor hidden, weight, labels, above;
};

Problem make_problem(std::int64_t rows, std::int64_t classes) {
  const auto numbers = [](std::int64_t a, std::int64_t b, double scale) {
    const auto x = at::arange(a * b, at::kFloat).view({a, b});
    return at::sin(x * 12.9898) * scale;
  };
  Problem p{numbers(rows, 12, 1.0), numbers(classes, 12, 0.7), {}, {}};
  p.labels = (at::arange(rows, at::kLong) * 7) % classes;
  p.labels[1] = -100;
  p.above = at::linspace(-1, 2, rows);
  return p;
}

/// What libtorch's operators give.
TokenScores by_definition(const Problem& p, const at::Tensor& hidden, const at::Tensor& weight,
                          const TokenScoreOptions& options) {
  auto logits = at::linear(hidden, weight) * options.scale;
  if (options.softcap > 0) logits = at::tanh(logits / options.softcap) * options.softcap;
  return token_log_probs_of(logits, p.labels, true);
}

void expect_same(const TokenScoreOptions& options, bool trains_weight, std::int64_t classes) {
  const Problem p = make_problem(9, classes);
  const auto hidden = p.hidden.clone().requires_grad_(), weight = p.weight.clone().requires_grad_(trains_weight);
  const auto hidden2 = p.hidden.clone().requires_grad_(), weight2 = p.weight.clone().requires_grad_(trains_weight);
  const auto scores = token_log_probs(hidden, weight, p.labels, options);
  const auto expected = by_definition(p, hidden2, weight2, options);
  EXPECT_TRUE(at::allclose(scores.logps, expected.logps, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(scores.statistics, expected.statistics, 1e-5, 1e-5));
  EXPECT_EQ(scores.logps[1].item<float>(), 0);
  (scores.logps * p.above).sum().backward();
  (expected.logps * p.above).sum().backward();
  EXPECT_TRUE(at::allclose(hidden.grad(), hidden2.grad(), 1e-4, 1e-5));
  if (trains_weight) {
    EXPECT_TRUE(at::allclose(weight.grad(), weight2.grad(), 1e-4, 1e-5));
  }
}

TEST(TokenLogProbs, ValuesAndGradientsAreThoseOfTheDefinition) {
  for (const bool trains_weight : {false, true}) {
    expect_same({.statistics = true}, trains_weight, 37);
    expect_same({.scale = 0.3, .statistics = true}, trains_weight, 64);
    expect_same({.scale = 1.7, .softcap = 2.5, .statistics = true}, trains_weight, 19);
    expect_same({.scale = 3.0, .statistics = true}, trains_weight, 2500);  // several chunks
  }
}

TEST(TokenLogProbs, NoRowsHaveAGradientOfZeros) {
  const auto hidden = at::zeros({0, 12}).requires_grad_(), weight = at::ones({5, 12}).requires_grad_();
  const auto scores = token_log_probs(hidden, weight, at::zeros({0}, at::kLong), {});
  EXPECT_EQ(scores.logps.numel(), 0);
  scores.logps.sum().backward();
  EXPECT_EQ(weight.grad().abs().max().item<float>(), 0);
}

TEST(TokenLogProbs, RefuseALabelThatTheHeadHasNoClassFor) {
  const auto hidden = at::zeros({2, 12}), weight = at::ones({5, 12}), labels = at::full({2}, 5, at::kLong);
  EXPECT_THROW(token_log_probs(hidden, weight, labels, {}), DataError);
}

}  // namespace
}  // namespace tessera::nn
