// fp16 with fp32 masters and a scaled loss.
#include "tessera/optim/grad_scaler.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::loss_of;
using testing::SmallNet;
using testing::train_alone;

constexpr MixedPrecision kFp16{.param_dtype = at::kHalf, .reduce_dtype = at::kHalf, .output_dtype = at::kFloat};
constexpr MixedPrecision kBf16{.param_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16, .output_dtype = at::kFloat};

TEST(GradScaler, GrowsAfterItsIntervalAndBacksOff) {
  const auto solo = comm::make_solo();
  auto p = at::ones({3}).set_requires_grad(true);
  optim::AdamW optimizer({p});
  optim::GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const auto step = [&](float grad) {
    p.mutable_grad() = at::full({3}, grad);
    const bool stepped = scaler.step(optimizer, *solo);
    scaler.update();
    return stepped;
  };
  EXPECT_TRUE(step(8));
  EXPECT_TRUE(at::equal(p.grad(), at::ones({3})));
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scaler.scale(), 16);
  const auto before = p.detach().clone();
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(step(bad));
    EXPECT_TRUE(at::equal(p.detach(), before));
    EXPECT_EQ(optimizer.steps(), 2);
  }
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scaler.growth_tracker(), 1);
  EXPECT_THROW(optim::GradScaler({.growth_factor = 1}), ConfigError);
}

struct Outcome {
  std::vector<double> losses, scales;
  std::vector<bool> stepped;
  std::map<std::string, at::Tensor> weights;
};

/// `overflow`: at this step, only rank 1 multiplies its loss into infinity.
std::vector<Outcome> train(int world, GatherForm form, MixedPrecision precision, int steps, int overflow = -1,
                           double init_scale = 65536) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world));
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    auto& out = outcomes[static_cast<std::size_t>(group->rank())];
    SmallNet net;
    auto sharded =
        fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"}), .precision = precision, .gather = form});
    optim::AdamW optimizer(sharded->parameters(), testing::adamw_options());
    optim::GradScaler scaler({.init_scale = init_scale});
    for (int step = 0; step < steps; ++step) {
      auto loss = loss_of(net(batch(group->rank(), step)), group->rank(), step);
      out.losses.push_back(loss.item<double>());
      const bool explode = step == overflow && group->rank() == 1;
      (scaler.scale(loss) * (explode ? 1e30 : 1.0)).backward();
      scaler.unscale(optimizer, *group);
      sharded->clip_grad_norm(0.5, optimizer);
      out.stepped.push_back(scaler.step(optimizer, *group));
      scaler.update();
      optimizer.zero_grad();
      out.scales.push_back(scaler.scale());
    }
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) { out.weights[name] = t.detach().clone(); });
  });
  return outcomes;
}

TEST(Fp16, FollowsFp32WithMastersInFp32) {
  const auto alone = train_alone(2, {});
  for (auto form : {GatherForm::kCopy, GatherForm::kShared})
    for (const auto& precision : {kFp16, kBf16}) {
      const auto ranks = train(2, form, precision, 5, -1, 1024);
      const double tolerance = precision.param_dtype == at::kHalf ? 2e-3 : 2e-2;
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_NEAR((ranks[0].losses[i] + ranks[1].losses[i]) / 2, alone.losses[i], tolerance * alone.losses[i]);
        EXPECT_TRUE(ranks[0].stepped[i]);
      }
      for (const auto& [name, t] : ranks[0].weights) {
        EXPECT_EQ(t.scalar_type(), at::kFloat) << name;
        EXPECT_TRUE(at::equal(t, ranks[1].weights.at(name))) << name;
      }
    }
}

TEST(Fp16, AnOverflowOnOneRankSkipsTheStepOnAll) {
  for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
    const auto ranks = train(3, form, kFp16, 4, 2, 512);
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank.stepped, (std::vector<bool>{true, true, false, true}));
      EXPECT_EQ(rank.scales, (std::vector<double>{512, 512, 256, 256}));
    }
    for (const auto& [name, t] : ranks[0].weights) EXPECT_TRUE(at::isfinite(t).all().item<bool>()) << name;
  }
}

TEST(Fp16, TheScaleFallsUntilGradientsFit) {
  const auto ranks = train(2, GatherForm::kShared, kFp16, 24, -1, 1e9);
  EXPECT_FALSE(ranks[0].stepped.front());
  EXPECT_TRUE(ranks[0].stepped.back());
  EXPECT_EQ(ranks[0].stepped, ranks[1].stepped);
  EXPECT_LT(ranks[0].scales.back(), 1e9);
}

}  // namespace
}  // namespace tessera::fsdp
