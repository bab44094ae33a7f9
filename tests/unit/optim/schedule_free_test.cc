// Schedule-free rules against schedulefree, AdamW of any precision against its formula, LOMO against lomo-optim.
#include <gtest/gtest.h>

#include "support/sharded_problem.h"
#include "support/temp_folder.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using namespace sharded_problem;

std::shared_ptr<io::TensorSource> data(const std::string& file) {
  return io::open_safetensors(std::string(TESSERA_TEST_DATA) + "/optim/" + file + ".safetensors");
}

const std::map<std::string, Recipe> kScheduleFree = {
    {"schedule_free_adamw",
     {.optimizer = "schedule_free_adamw", .args = "warmup_steps=3", .lr = 1e-2, .weight_decay = 0.01}},
    {"schedule_free_radam", {.optimizer = "schedule_free_radam", .args = "r=1", .lr = 1e-2, .weight_decay = 0.01}},
    {"schedule_free_sgd",
     {.optimizer = "schedule_free_sgd", .args = "weight_lr_power=1", .lr = 1e-1, .weight_decay = 0.01}}};

/// Compares what the file has of `prefix`; returns how many tensors that were.
int compare(const Result& found, const std::string& prefix, const std::string& kind, double tolerance) {
  const auto expected = data("free_expected");
  const auto wanted = prefix + "." + kind + ".";
  int compared = 0;
  for (const auto& info : expected->tensors()) {
    if (!info.name.starts_with(wanted)) continue;
    const auto& tensors = kind == "state" ? found.states : found.parameters;
    const auto t = tensors.at(info.name.substr(wanted.size()));
    const auto want = io::read_tensor(*expected, info.name);
    EXPECT_EQ(t.scalar_type(), want.scalar_type()) << info.name;
    EXPECT_TRUE(at::allclose(t.to(at::kFloat), want.to(at::kFloat), tolerance, tolerance))
        << info.name << " differs by " << (t - want).abs().max().item<float>();
    ++compared;
  }
  return compared;
}

TEST(ScheduleFree, FollowsItsUpstreamOnAnyNumberOfRanks) {
  const auto problem = data("bnb_problem");
  for (const auto& [name, r] : kScheduleFree)
    for (const int world : {1, 2, 3}) {
      const auto trained = run(r, *problem, 0, 8, world);
      EXPECT_GE(compare(trained, name, "param", 1e-6), 2) << name;
      EXPECT_GE(compare(trained, name, "state", 1e-6), 2) << name;
      const auto shown =
          run(r, *problem, 0, 8, world, nullptr, at::kFloat, 1, [](Shard&, Optimizer& o) { o.show_average(); });
      EXPECT_GE(compare(shown, name, "average", 1e-6), 2) << name;
    }
}

TEST(ScheduleFree, LookingAtTheAverageLeavesNoTrace) {
  const auto problem = data("bnb_problem");
  const auto folder = test::TempFolder::on_disk("schedule_free");
  for (const auto& [name, r] : kScheduleFree)
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto plain = run(r, *problem, 0, 6, 1, nullptr, dtype);
      Result shown;
      const Loader look = [&](Shard& shard, Optimizer& o) {
        if (name == "schedule_free_sgd") o.keep_state_in(std::make_shared<tensor::DiskStore>(folder.path()));
        o.show_average();  // nothing yet
        for (int step = 0; step < 6; ++step) {
          set_gradient(*problem, step, shard);
          o.step();
          const auto before = shard.flat.detach().clone();
          o.show_average();
          o.show_average();
          EXPECT_TRUE(step == 0 || name == "schedule_free_radam" || !at::equal(shard.flat.detach(), before)) << name;
          o.show_trained();
        }
      };
      expect_equal(plain, run(r, *problem, 6, 6, 1, look, dtype), name);
    }
}

TEST(ScheduleFree, StateContinuesOnAnotherNumberOfRanksBitForBit) {
  const auto problem = data("bnb_problem");
  for (const auto& [name, r] : kScheduleFree) {
    const auto through = run(r, *problem, 0, 6, 1), half = run(r, *problem, 0, 3, 2);
    for (const int world : {1, 3}) expect_equal(through, run(r, *problem, 3, 6, world, from_result(half, 3)), name);
  }
}

TEST(ScheduleFree, StateSaysTheSameWhileTheAverageIsShown) {
  const auto problem = data("bnb_problem");
  const auto& r = kScheduleFree.at("schedule_free_adamw");
  const auto trained = run(r, *problem, 0, 4, 2);
  const auto shown = run(r, *problem, 0, 4, 2, nullptr, at::kFloat, 1, [](Shard&, Optimizer& o) { o.show_average(); });
  ASSERT_EQ(trained.states.size(), shown.states.size());
  for (const auto& [name, t] : trained.states) EXPECT_TRUE(at::equal(t, shown.states.at(name))) << name;
}

TEST(ScheduleFree, RefusesAMomentumThatIsNone) {
  auto p = at::ones({4}).set_requires_grad(true);
  EXPECT_THROW(make_optimizer("schedule_free_sgd", {.optim_args = "momentum=0"}, {p}, whole_slices({p}), nullptr),
               ConfigError);
}

TEST(AnyPrecision, FollowsItsFormulaInItsDtypes) {
  const auto problem = data("bnb_problem");
  const Recipe plain{.optimizer = "adamw_anyprecision", .args = "", .weight_decay = 0.01};
  const Recipe kahan{.optimizer = "adamw_anyprecision",
                     .args = "use_kahan_summation=True,momentum_dtype=bfloat16,variance_dtype=bfloat16",
                     .weight_decay = 0.01};
  for (const int world : {1, 2, 3}) {
    EXPECT_GE(compare(run(plain, *problem, 0, 8, world), "any", "param", 1e-6), 2);
    EXPECT_GE(compare(run(plain, *problem, 0, 8, world), "any", "state", 1e-6), 4);
    const auto found = run(kahan, *problem, 0, 8, world, nullptr, at::kBFloat16);
    EXPECT_EQ(compare(found, "any_kahan", "param", 4e-3), 3);
    EXPECT_GE(compare(found, "any_kahan", "state", 8e-3), 6);
  }
}

TEST(AnyPrecision, KahanSummationKeepsWhatBfloat16RoundsAway) {
  auto a = at::ones({64}, at::kBFloat16).set_requires_grad(true),
       b = at::ones({64}, at::kBFloat16).set_requires_grad(true);
  const auto plain = make_optimizer("adamw_anyprecision", {.lr = 1e-4}, {a}, whole_slices({a}), nullptr);
  const auto kahan = make_optimizer("adamw_anyprecision", {.lr = 1e-4, .optim_args = "use_kahan_summation=true"}, {b},
                                    whole_slices({b}), nullptr);
  for (int step = 0; step < 100; ++step) {
    a.mutable_grad() = at::ones_like(a), b.mutable_grad() = at::ones_like(b);
    plain->step(), kahan->step();
  }
  EXPECT_TRUE((a == 1).all().item<bool>());
  EXPECT_NEAR(b[0].item<float>(), 0.99, 2e-3);
}

TEST(AnyPrecision, RefusesADtypeThatIsNone) {
  auto p = at::ones({4}).set_requires_grad(true);
  try {
    make_optimizer("adamw_anyprecision", {.optim_args = "momentum_dtype=int8"}, {p}, whole_slices({p}), nullptr);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("float32, bfloat16, float16 for 'momentum_dtype', found 'int8'"),
              std::string::npos)
        << e.what();
  }
}

TEST(Lomo, AndAdaLomoFollowTheirUpstreamOnAnyNumberOfRanks) {
  const auto problem = data("bnb_problem");
  for (const char* name : {"lomo", "adalomo"})
    for (const int world : {1, 2, 3}) {
      const Recipe r{.optimizer = name, .args = "weight_decay=0.1", .lr = 1e-2};
      EXPECT_GE(compare(run(r, *problem, 0, 8, world), name, "param", 2e-6), 2) << name << " on " << world;
    }
}

}  // namespace
}  // namespace tessera::optim
