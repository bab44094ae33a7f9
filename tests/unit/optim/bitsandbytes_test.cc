// 8-bit optimizers against bitsandbytes on a CPU: codes and absmax exact, whole and in pieces.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "support/sharded_problem.h"
#include "support/temp_folder.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"

namespace tessera::optim {
namespace {

using namespace sharded_problem;

const std::vector<std::string> kNames = {"b", "small", "w"};  // "w" alone has 4096 elements

const std::vector<Recipe> kAdamAndLion = {{.optimizer = "adamw_bnb_8bit", .args = "", .weight_decay = 0.01},
                                          {.optimizer = "lion_8bit", .args = "", .weight_decay = 0.1, .beta2 = 0.99}};

TEST(Bitsandbytes, AdamWAndLionHaveItsCodesForTwentySteps) {
  const std::vector<std::string> files = {"bnb_adamw_8bit", "bnb_lion_8bit"};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto golden = open(files[i]);
    for (const int steps : {1, 20})
      expect_upstream(run(kAdamAndLion[i], *golden, 0, steps, 1), *golden, "step" + std::to_string(steps - 1) + ".",
                      false);
    for (const int steps : {2, 5, 10}) {
      const auto found = run(kAdamAndLion[i], *golden, 0, steps, 1);
      for (const auto& n : kNames) {
        const auto want = io::read_tensor(*golden, "step" + std::to_string(steps - 1) + ".param." + n);
        EXPECT_LE((found.parameters.at(n) - want).abs().max().item<float>(), kRounding) << files[i] << ' ' << steps;
      }
    }
  }
}

const std::map<std::string, Recipe> kOthers = {
    {"ademamix_8bit.", {.optimizer = "ademamix_8bit", .args = "", .weight_decay = 0.01}},
    {"ademamix_8bit_scheduled.", {.optimizer = "paged_ademamix_8bit", .args = "t_alpha=5,t_beta3=6"}},
    {"ademamix.", {.optimizer = "ademamix", .args = "", .weight_decay = 0.01}},
    {"rmsprop_bnb_8bit.", {.optimizer = "rmsprop_bnb_8bit", .args = "", .weight_decay = 0.01}},
    {"rmsprop_bnb.", {.optimizer = "rmsprop_bnb", .args = "alpha=0.9", .weight_decay = 0.01}}};

TEST(Bitsandbytes, AdEmaMixAndRmsPropHaveItsStates) {
  const auto problem = open("bnb_problem"), expected = open("bnb_expected");
  for (const auto& [prefix, r] : kOthers) expect_upstream(run(r, *problem, 0, 8, 1), *expected, prefix, true);
}

/// Rules that need a sum over each parameter, which rounds otherwise in pieces.
TEST(WholeParameters, StableAdamWAndGrokAdamWFollowTheirUpstreamOnAnyNumberOfRanks) {
  const std::map<std::string, Recipe> recipes = {
      {"stable_adamw.", {.optimizer = "stable_adamw", .args = "", .weight_decay = 0.01}},
      {"stable_adamw_decoupled.",
       {.optimizer = "stable_adamw",
        .args = "decouple_lr=true,max_lr=0.01",
        .weight_decay = 0.01,
        .beta2 = 0.99,
        .eps = 1e-6}},
      {"grokadamw.", {.optimizer = "grokadamw", .args = "", .weight_decay = 0.01}},
      {"grokadamw_unclipped.", {.optimizer = "grokadamw", .args = "gamma=0.3,lamb=1,gradient_clipping=0"}}};
  const auto problem = open("bnb_problem"), expected = open("bnb_expected");
  for (const auto& [prefix, r] : recipes)
    for (const int world : {1, 2, 3}) {
      const auto found = run(r, *problem, 0, 8, world);
      std::size_t compared = 0;
      for (const auto& [name, t] : found.parameters) {
        const auto want = io::read_tensor(*expected, prefix + "param." + name);
        EXPECT_LE((t - want).abs().max().item<float>(), 2e-6) << prefix << name << " on " << world;
        ++compared;
      }
      for (const auto& [name, t] : found.states)
        EXPECT_TRUE(at::allclose(t, io::read_tensor(*expected, prefix + "state." + name), 1e-5, 1e-7))
            << prefix << name << " on " << world;
      EXPECT_EQ(compared, kNames.size());
    }
}

TEST(Bitsandbytes, AnyNumberOfRanksHasTheBitsOfOne) {
  const auto problem = open("bnb_problem");
  for (const auto& name : {"adamw_8bit", "lion_8bit", "ademamix_8bit", "rmsprop_bnb_8bit", "ademamix"}) {
    const Recipe r{.optimizer = name, .args = "", .weight_decay = 0.01};
    const auto one = run(r, *problem, 0, 5, 1);
    for (const int world : {2, 3, 5, 40})  // 40: pieces shorter than a block
      expect_equal(one, run(r, *problem, 0, 5, world), std::string(name) + " on " + std::to_string(world));
  }
}

TEST(Bitsandbytes, StateContinuesOnAnotherNumberOfRanks) {
  const auto problem = open("bnb_problem");
  for (const auto& name : {"paged_adamw_8bit", "paged_lion_8bit", "ademamix_8bit", "rmsprop_bnb_32bit"}) {
    const Recipe r{.optimizer = name, .args = ""};
    const auto through = run(r, *problem, 0, 6, 1), half = run(r, *problem, 0, 3, 2);
    for (const int world : {1, 3}) expect_equal(through, run(r, *problem, 3, 6, world, from_result(half, 3)), name);
  }
}

TEST(Bitsandbytes, ClippingsFactorIsPartOfTheStep) {
  const auto problem = open("bnb_problem");
  const Recipe r{.optimizer = "adamw_8bit", .args = ""};
  expect_equal(run(r, *problem, 0, 3, 1), run(r, *problem, 0, 3, 2, nullptr, at::kFloat, 0.25), "factor");
}

TEST(Bitsandbytes, SixteenBitParametersAreUpdatedInFloat) {
  const auto problem = open("bnb_problem");
  const Recipe r{.optimizer = "adamw_8bit", .args = ""};
  const auto wide = run(r, *problem, 0, 1, 1), narrow = run(r, *problem, 0, 1, 2, nullptr, at::kBFloat16);
  for (const auto& n : kNames)  // gradients are bfloat16's, so states are alike; parameters are rounded
    EXPECT_TRUE(at::equal(wide.states.at(n + ".state1"), narrow.states.at(n + ".state1"))) << n;
  EXPECT_LE((wide.parameters.at("w") - narrow.parameters.at("w")).abs().max().item<float>(), 0.03);
}

TEST(Bitsandbytes, EmbeddingsAndSmallTensorsKeepTheirStatesInFloat) {
  auto a = at::ones({64, 64}).set_requires_grad(true), b = at::ones({64, 64}).set_requires_grad(true),
       c = at::ones({4095}).set_requires_grad(true);
  auto slices = whole_slices({a, b, c});
  slices[1].full_state = true;
  const auto dtypes = [&](const std::string& args) {
    const auto optimizer = make_optimizer("adamw_8bit", {.optim_args = args}, {a, b, c}, slices, nullptr);
    std::map<std::string, at::ScalarType> result;
    for (const auto& s : optimizer->state())
      if (s.state == "state1") result[s.parameter] = s.local.scalar_type();
    return result;
  };
  const std::map<std::string, at::ScalarType> usual = {{"0", at::kByte}, {"1", at::kFloat}, {"2", at::kFloat}};
  EXPECT_EQ(dtypes(""), usual);
  EXPECT_EQ(dtypes("min_8bit_size=4095").at("2"), at::kByte);
}

TEST(Bitsandbytes, StateOnADiskIsTheSame) {
  const auto problem = open("bnb_problem");
  const auto folder = test::TempFolder::on_disk("bnb_state");
  for (const char* name : {"paged_adamw_8bit", "paged_ademamix_32bit"}) {
    const Recipe r{.optimizer = name, .args = ""};
    const Loader offload = [&](Shard&, Optimizer& o) {
      o.keep_state_in(std::make_shared<tensor::DiskStore>(folder.path()));
    };
    expect_equal(run(r, *problem, 0, 4, 1), run(r, *problem, 0, 4, 2, offload), name);
  }
}

TEST(Bitsandbytes, RefusesCodesOfAnotherMap) {
  auto p = at::ones({4096}).set_requires_grad(true);
  const auto optimizer = make_optimizer("adamw_8bit", {}, {p}, whole_slices({p}), nullptr);
  for (auto& s : optimizer->state())
    if (s.state == "qmap2") s.local[17] = 0.5;
  p.mutable_grad() = at::ones({4096});
  try {
    optimizer->step();
    FAIL() << "the map was not checked";
  } catch (const CheckpointError& e) {
    EXPECT_NE(std::string(e.what()).find("qmap2"), std::string::npos) << e.what();
  }
}

TEST(Bitsandbytes, RefusesFloat64) {
  auto p = at::ones({8}, at::kDouble).set_requires_grad(true);
  EXPECT_THROW(make_optimizer("lion_8bit", {}, {p}, whole_slices({p}), nullptr), ConfigError);
}

}  // namespace
}  // namespace tessera::optim
