#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/temp_folder.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {
namespace {

at::Tensor wave(std::int64_t n, double seed) {
  return at::sin(at::arange(n, at::kDouble) * 0.7 + seed).to(at::kFloat);
}

/// The definition, in double.
struct Reference {
  at::Tensor p, m, v;
  explicit Reference(const at::Tensor& start) : p(start.to(at::kDouble)), m(at::zeros_like(p)), v(at::zeros_like(p)) {}
  void step(const at::Tensor& grad, int t, const AdamWOptions& o, double decay) {
    const auto g = grad.to(at::kDouble);
    p = p * (1 - o.lr * decay);
    m = m * o.beta1 + g * (1 - o.beta1);
    v = v * o.beta2 + g * g * (1 - o.beta2);
    p = p - o.lr * (m / (1 - std::pow(o.beta1, t))) / ((v / (1 - std::pow(o.beta2, t))).sqrt() + o.eps);
  }
};

TEST(AdamW, FollowsTheDefinitionForEveryLengthOfTail) {
  const AdamWOptions options{.lr = 1e-2, .weight_decay = 0.1};
  for (std::int64_t n : {1, 3, 8, 15, 16, 17, 31, 33, 1000}) {
    auto p = wave(n, 1).set_requires_grad(true);
    Reference reference(p.detach());
    AdamW optimizer({p}, options);
    for (int t = 1; t <= 10; ++t) {
      p.mutable_grad() = wave(n, t);
      optimizer.step();
      reference.step(wave(n, t), t, options, options.weight_decay);
    }
    EXPECT_LE((p.detach().to(at::kDouble) - reference.p).abs().max().item<double>(), 5e-7) << n;
  }
}

TEST(AdamW, BitsDoNotDependOnHowAParameterIsCut) {
  const std::int64_t n = 100'003, cut = 40'001;
  auto whole = wave(n, 1).set_requires_grad(true);
  auto left = wave(n, 1).narrow(0, 0, cut).clone().set_requires_grad(true);
  auto right = wave(n, 1).narrow(0, cut, n - cut).clone().set_requires_grad(true);
  AdamW one({whole}), two({left, right});
  for (int t = 0; t < 3; ++t) {
    const auto g = wave(n, 5 + t);
    whole.mutable_grad() = g;
    left.mutable_grad() = g.narrow(0, 0, cut).clone();
    right.mutable_grad() = g.narrow(0, cut, n - cut).clone();
    one.step();
    two.step();
  }
  EXPECT_TRUE(at::equal(whole.detach(), at::cat({left.detach(), right.detach()})));
}

TEST(AdamW, PieceByPieceOnADiskTheBitsAreTheSame) {
  const auto disk = test::TempFolder::on_disk("adamw");
  constexpr std::int64_t kNumel = 2'500'003, kFirst = 1'001;  // three pieces, none at the edge of a page
  const std::vector<ParameterSlice> slices = {
      {.name = "a", .shape = {kFirst}, .numel = kFirst, .parameter = 0},
      {.name = "b", .shape = {kNumel - kFirst}, .numel = kNumel - kFirst, .parameter = 0, .parameter_offset = kFirst}};
  std::vector<at::Tensor> trained;
  for (const bool offloaded : {false, true}) {
    auto offload = offloaded ? std::make_shared<tensor::DiskStore>(disk.path()) : nullptr;
    auto p = offloaded ? offload->allocate(kNumel, at::kFloat) : at::empty({kNumel});
    p.copy_(wave(kNumel, 1)).set_requires_grad(true);
    AdamW optimizer({p}, slices, {});
    optimizer.keep_state_in(offload);
    for (int t = 0; t < 2; ++t) {
      p.mutable_grad() = wave(kNumel, 5 + t);
      optimizer.step();
    }
    trained.push_back(p.detach().clone());
  }
  EXPECT_TRUE(at::equal(trained[0], trained[1]));
}

TEST(AdamW, LeavesNoDecayRangesUndecayed) {
  auto p = at::ones({40}).set_requires_grad(true);
  AdamW optimizer({p}, {.lr = 0.1, .weight_decay = 0.5, .no_decay = {{{3, 5}, {20, 40}}}});
  p.mutable_grad() = at::zeros({40});
  optimizer.step();
  const auto decayed = p.detach() < 1;
  EXPECT_EQ(decayed.sum().item<std::int64_t>(), 18);
  EXPECT_FALSE(decayed[3].item<bool>());
  EXPECT_TRUE(decayed[5].item<bool>());
}

TEST(AdamW, Trains16BitParametersWithMomentsOfTheirDtype) {
  auto p = wave(300, 1).to(at::kBFloat16).set_requires_grad(true);
  AdamW optimizer({p}, {.lr = 0.1});
  p.mutable_grad() = wave(300, 2).to(at::kBFloat16);
  const auto before = p.detach().to(at::kFloat).clone();
  optimizer.step();
  EXPECT_NEAR((p.detach().to(at::kFloat) - before).abs().mean().item<float>(), 0.1, 0.01);
  EXPECT_EQ(optimizer.state()[0].local.scalar_type(), at::kBFloat16);
}

TEST(AdamW, SkipsParametersWithoutGradientAndTellsAutogradOfWrites) {
  auto a = at::ones({4}).set_requires_grad(true), b = at::ones({4}).set_requires_grad(true);
  AdamW optimizer({a, b});
  a.mutable_grad() = at::ones({4});
  const auto version_a = a._version(), version_b = b._version();
  optimizer.step();
  EXPECT_NE(a._version(), version_a);
  EXPECT_EQ(b._version(), version_b);
  EXPECT_TRUE(at::equal(b.detach(), at::ones({4})));
}

TEST(AdamW, ContinuesFromLoadedState) {
  auto run = [](bool reload) {
    auto p = wave(50, 1).set_requires_grad(true);
    auto optimizer = std::make_unique<AdamW>(std::vector<at::Tensor>{p}, AdamWOptions{.lr = 0.01});
    for (int t = 0; t < 6; ++t) {
      if (reload && t == 3) {
        auto next = std::make_unique<AdamW>(std::vector<at::Tensor>{p}, AdamWOptions{.lr = 0.01});
        auto from = optimizer->state(), to = next->state();
        for (std::size_t i = 0; i < to.size(); ++i) to[i].local.copy_(from[i].local);
        next->set_steps(optimizer->steps());
        optimizer = std::move(next);
      }
      p.mutable_grad() = wave(50, t);
      optimizer->step();
    }
    return p.detach();
  };
  EXPECT_TRUE(at::equal(run(false), run(true)));
}

TEST(AdamW, RejectsRangesOutsideTheParameter) {
  auto p = at::ones({4}).set_requires_grad(true);
  EXPECT_THROW(AdamW({p}, {.no_decay = {{{2, 9}}}}), ConfigError);
  EXPECT_THROW(AdamW({p}, {.no_decay = {{}, {}}}), ConfigError);
}

}  // namespace
}  // namespace tessera::optim
