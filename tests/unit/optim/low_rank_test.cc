// GaLore against galore-torch, APOLLO against apollo-torch.
#include <gtest/gtest.h>

#include "support/sharded_problem.h"
#include "support/temp_folder.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using namespace sharded_problem;

std::shared_ptr<io::TensorSource> low_rank_data(const std::string& file) {
  return io::open_safetensors(std::string(TESSERA_TEST_DATA) + "/optim/lowrank_" + file + ".safetensors");
}

std::map<std::string, Recipe> recipes() {
  const std::string common = "rank=4,update_proj_gap=3", apollo = common + ",beta1=0.9,beta2=0.99,eps=1e-8";
  std::map<std::string, Recipe> out;
  const auto add = [&](const std::string& prefix, const std::string& name, const std::string& args) -> Recipe& {
    return out[prefix] = {.optimizer = name, .args = args, .lr = 1e-2, .low_rank = true};
  };
  for (const char* type : {"std", "reverse_std", "left", "right", "full"})
    add(std::string("galore_") + type, "galore_adamw", common + ",scale=0.25,proj_type=" + type);
  add("galore_8bit", "galore_adamw_8bit", common + ",min_8bit_size=64,weight_decay=0.01");
  add("galore_adafactor", "galore_adafactor", common);
  add("apollo", "apollo_adamw", apollo);
  add("apollo_tensor", "apollo_adamw", apollo + ",scale_type=tensor,scale=128");
  add("apollo_svd", "apollo_adamw", apollo + ",proj=svd");
  return out;
}

// In eight bits a last bit of a sum may become another code.
TEST(LowRank, GaLoreAndApolloFollowTheirUpstreamOnAnyNumberOfRanks) {
  const auto problem = low_rank_data("problem"), expected = low_rank_data("expected");
  for (const auto& [prefix, r] : recipes())
    for (const int world : {1, 2, 3, 7}) {
      const auto found = run(r, *problem, 0, 8, world);
      const double tolerance = prefix == "galore_8bit" ? 2e-4 : 1e-5;
      for (const auto& [name, t] : found.parameters) {
        const auto want = io::read_tensor(*expected, prefix + ".param." + name);
        EXPECT_LE((t - want).abs().max().item<float>(), tolerance) << prefix << ' ' << name << " on " << world;
      }
      if (prefix == "galore_8bit" || prefix == "galore_adafactor") continue;
      for (const auto& [name, t] : found.states) {
        if (name.find("exp_avg") == std::string::npos) continue;
        const auto want = io::read_tensor(*expected, prefix + ".state." + name);
        EXPECT_TRUE(at::allclose(t.abs(), want.abs(), 1e-3, 1e-6)) << prefix << ' ' << name << " on " << world;
      }
    }
}

TEST(LowRank, StateContinuesBitForBit) {
  const auto problem = low_rank_data("problem");
  for (const auto& [prefix, r] : recipes())
    for (const int world : {1, 2}) {
      const auto half = run(r, *problem, 0, 4, world);
      expect_equal(run(r, *problem, 0, 8, world), run(r, *problem, 4, 8, world, from_result(half, 4)),
                   prefix + " on " + std::to_string(world));
    }
}

TEST(LowRank, StateContinuesOnAnotherNumberOfRanks) {
  const auto problem = low_rank_data("problem");
  for (const auto& [prefix, r] : recipes()) {
    const auto through = run(r, *problem, 0, 8, 1), half = run(r, *problem, 0, 4, 3);
    const auto found = run(r, *problem, 4, 8, 2, from_result(half, 4));
    for (const auto& [name, t] : through.parameters)
      EXPECT_LE((t - found.parameters.at(name)).abs().max().item<float>(), 1e-4) << prefix << ' ' << name;
  }
}

TEST(LowRank, ClippingsFactorAndStateOnADiskChangeNothing) {
  const auto problem = low_rank_data("problem");
  const auto folder = test::TempFolder::on_disk("low_rank_state");
  const Loader offload = [&](Shard&, Optimizer& o) {
    o.keep_state_in(std::make_shared<tensor::DiskStore>(folder.path()));
  };
  for (const auto& [prefix, r] : recipes())
    expect_equal(run(r, *problem, 0, 5, 2), run(r, *problem, 0, 5, 2, offload, at::kFloat, 0.25), prefix);
}

TEST(LowRank, MatricesKeepStatesOfTheirRankAlone) {
  const auto problem = low_rank_data("problem");
  const auto found = run(recipes().at("apollo"), *problem, 0, 1, 2);
  EXPECT_EQ(found.states.at("t.exp_avg").sizes(), (std::vector<std::int64_t>{24, 4}));
  EXPECT_EQ(found.states.at("u.exp_avg").sizes(), (std::vector<std::int64_t>{4, 24}));
  EXPECT_EQ(found.states.at("b.exp_avg").sizes(), (std::vector<std::int64_t>{10}));
  EXPECT_FALSE(found.states.contains("t.projection_right"));
}

TEST(LowRank, RefusesArgumentsThatMeanNothing) {
  auto p = at::ones({4, 4}).set_requires_grad(true);
  for (const char* args : {"rank=0", "rank=2.5", "proj_type=up", "update_proj_gap=0", "proj=svd"})
    EXPECT_THROW(make_optimizer("galore_adamw", {.optim_args = args}, {p}, whole_slices({p}), nullptr), ConfigError)
        << args;
}

}  // namespace
}  // namespace tessera::optim
