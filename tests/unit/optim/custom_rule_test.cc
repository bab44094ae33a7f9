// An optimizer as a user writes it, on public headers alone: docs/guides/library.md.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera {
namespace {

/// Sign descent with momentum.
class SignMomentum final : public optim::FlatOptimizer {
 public:
  SignMomentum(const std::vector<at::Tensor>& parameters, double lr)
      : FlatOptimizer(parameters, optim::whole_slices(parameters), lr, /*weight_decay=*/0, {"momentum"}) {}

 private:
  optim::Update update(double lr, double /*weight_decay*/) const override {
    optim::Update u;
    u.rule = optim::Rule::kCustom;
    u.custom = [lr](std::int64_t n, float* p, const float* g, optim::States<float> states) {
      for (std::int64_t i = 0; i < n; ++i) {
        float& m = states[0][i];
        m = 0.9f * m + 0.1f * g[i];
        p[i] -= static_cast<float>(lr) * static_cast<float>((m > 0) - (m < 0));
      }
    };
    return u;
  }
};

struct Expected {
  at::Tensor p, m;
};

/// Two steps by plain operators, of which the second takes a quarter of the gradients.
Expected two_steps(const at::Tensor& p, const at::Tensor& g) {
  const auto first = 0.1 * g, second = 0.9 * first + 0.1 * 0.25 * g;
  return {p - 0.5 * first.sign() - 0.5 * second.sign(), second};
}

TEST(CustomRule, UpdatesParametersAndItsStateWithClippedGradients) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::int64_t numel = 70'001;  // more than a thread's part, no multiple of a block
    auto p = (at::arange(numel, at::kFloat) % 37).to(dtype).set_requires_grad(true);
    const auto start = p.detach().clone().to(at::kFloat);
    const auto grad = (at::sin(at::arange(numel, at::kFloat)) * 3).to(dtype);
    SignMomentum optimizer({p}, 0.5);
    p.mutable_grad() = grad.clone();
    optimizer.step();
    optimizer.scale_next_gradients(0.25);
    p.mutable_grad() = grad.clone();
    optimizer.step();
    const auto expected = two_steps(start, grad.to(at::kFloat));
    EXPECT_TRUE(at::equal(p.detach().to(at::kFloat), expected.p)) << dtype;
    const auto states = optimizer.state();
    ASSERT_EQ(states.size(), 1u);
    EXPECT_EQ(states[0].state, "momentum");
    EXPECT_LT((states[0].local.to(at::kFloat) - expected.m).abs().max().item<double>(),
              dtype == at::kFloat ? 1e-7 : 4e-3);
  }
}

TEST(CustomRule, RefusesFloat64) {
  auto p = at::zeros({3}, at::kDouble).set_requires_grad(true);
  SignMomentum optimizer({p}, 0.5);
  p.mutable_grad() = at::ones({3}, at::kDouble);
  EXPECT_THROW(optimizer.step(), ConfigError);
}

}  // namespace
}  // namespace tessera
