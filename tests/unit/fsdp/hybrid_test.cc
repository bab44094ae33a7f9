// Sharded inside groups of ranks, replicated across groups.
#include <gtest/gtest.h>

#include "fsdp/plan/mesh.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/optim/grad_scaler.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::loss_of;
using testing::SmallNet;
using testing::train_alone;
using testing::train_sharded;
using testing::TrainOptions;

FsdpOptions hybrid(int group_size, GatherForm form, bool zero2 = false, MixedPrecision precision = {}) {
  return {.strategy = zero2 ? ShardingStrategy::kHybridShardZero2 : ShardingStrategy::kHybridShard,
          .shard_group_size = group_size,
          .wrap = wrap_classes({"MlpBlock"}),
          .precision = precision,
          .gather = form};
}

struct Grouping {
  int world, group_size;
};

TEST(Hybrid, TrainsLikeOneProcessWithEqualBitsOnAllRanks) {
  for (const auto& net : {testing::NetOptions{}, testing::NetOptions{.tied = true, .unused = true, .twice = true}})
    for (const auto& c :
         {Grouping{2, 1}, Grouping{3, 3}, Grouping{4, 2}, Grouping{4, 1}, Grouping{5, 1}, Grouping{5, 5}}) {
      const auto alone = train_alone(c.world, net);
      for (auto form : {GatherForm::kCopy, GatherForm::kShared})
        for (bool zero2 : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << c.world << " ranks in groups of " << c.group_size << ", zero2 " << zero2);
          const auto ranks = train_sharded(c.world, net, hybrid(c.group_size, form, zero2));
          EXPECT_LE(worst_difference(ranks[0], alone), 1e-6);
          for (const auto& rank : ranks) {
            EXPECT_EQ(worst_difference(rank, ranks[0]), 0.0);
            EXPECT_EQ(rank.norms, ranks[0].norms);
          }
          for (std::size_t i = 0; i < alone.norms.size(); ++i)
            EXPECT_NEAR(ranks[0].norms[i], alone.norms[i], 1e-6 * alone.norms[i]);
        }
    }
}

TEST(Hybrid, ClipsEveryNormAndFreezesLikeOneProcess) {
  for (double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    const TrainOptions how{.clip = 0.05, .p = p, .prepare = [](SmallNet& net) {
                             net.stem->weight.set_requires_grad(false);
                             for (auto& t : net.blocks[1]->parameters()) t.set_requires_grad(false);
                           }};
    const auto alone = train_alone(4, {}, how);
    for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
      const auto ranks = train_sharded(4, {}, hybrid(2, form), how);
      EXPECT_LE(worst_difference(ranks[3], alone), 2e-6);
      for (std::size_t i = 0; i < alone.norms.size(); ++i)
        EXPECT_NEAR(ranks[1].norms[i], alone.norms[i], 2e-6 * alone.norms[i]);
    }
  }
}

TEST(Hybrid, MixedPrecisionGivesEqualBits) {
  const MixedPrecision precision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16};
  const auto alone = train_alone(4, {});
  for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
    const auto ranks = train_sharded(4, {}, hybrid(2, form, false, precision));
    for (const auto& rank : ranks) EXPECT_EQ(worst_difference(rank, ranks[0]), 0.0);
    for (std::size_t i = 0; i < alone.norms.size(); ++i)
      EXPECT_NEAR(ranks[0].norms[i], alone.norms[i], 0.05 * alone.norms[i]);
  }
}

/// Gradients of two micro-batches, summed with or without a reduction between them.
std::map<std::string, at::Tensor> accumulated(GatherForm form, bool no_sync) {
  std::map<std::string, at::Tensor> grads;
  comm::run_threads(4, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, hybrid(2, form));
    for (int micro = 0; micro < 2; ++micro) {
      sharded->set_requires_gradient_sync(!no_sync || micro == 1);
      loss_of(net(batch(group->rank(), micro)), group->rank(), micro).backward();
    }
    sharded->visit_full_grads([&](const std::string& name, const at::Tensor& t) {
      if (group->rank() == 3) grads[name] = t.clone();
    });
  });
  return grads;
}

TEST(Hybrid, AccumulatesWithAndWithoutSync) {
  const auto reference = accumulated(GatherForm::kCopy, true);
  for (auto form : {GatherForm::kCopy, GatherForm::kShared})
    for (bool no_sync : {true, false})
      for (const auto& [name, grad] : accumulated(form, no_sync))
        EXPECT_TRUE(at::allclose(grad, reference.at(name), 1e-5, 1e-7)) << name;
}

TEST(Hybrid, AnOverflowOnOneRankOfOneCopySkipsTheStepOnAll) {
  for (auto form : {GatherForm::kCopy, GatherForm::kShared})
    comm::run_threads(4, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      auto sharded = fully_shard(
          net, group,
          hybrid(2, form, false, {.param_dtype = at::kHalf, .reduce_dtype = at::kHalf, .output_dtype = at::kFloat}));
      optim::AdamW optimizer(sharded->parameters(), testing::adamw_options());
      optim::GradScaler scaler({.init_scale = 256});
      std::vector<bool> stepped;
      for (int step = 0; step < 3; ++step) {
        const auto loss = loss_of(net(batch(group->rank(), step)), group->rank(), step);
        (scaler.scale(loss) * (step == 1 && group->rank() == 3 ? 1e30 : 1.0)).backward();
        stepped.push_back(scaler.step(optimizer, *group));
        scaler.update();
        optimizer.zero_grad();
      }
      EXPECT_EQ(stepped, (std::vector<bool>{true, false, true}));
      sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
        EXPECT_TRUE(at::isfinite(t).all().item<bool>()) << name;
      });
    });
}

TEST(Hybrid, GathersInsideAndCountsLikeFullShard) {
  const auto full = train_sharded(2, {}, {.wrap = wrap_classes({"MlpBlock"}), .gather = GatherForm::kCopy});
  const auto stats = train_sharded(4, {}, hybrid(2, GatherForm::kCopy))[2];
  EXPECT_EQ(stats.stats.gathers, full[0].stats.gathers);
  EXPECT_EQ(stats.stats.gathered_numel, full[0].stats.gathered_numel);
  EXPECT_EQ(stats.memory.shard_bytes, full[0].memory.shard_bytes) << "half of the model on each of four ranks";
  const auto zero2 = train_sharded(4, {}, hybrid(2, GatherForm::kCopy, true))[2];
  EXPECT_LT(zero2.stats.gathers, stats.stats.gathers);
}

TEST(Hybrid, SaysWhichCopyARankHolds) {
  comm::run_threads(4, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, hybrid(2, GatherForm::kAuto));
    EXPECT_EQ(sharded->replica(), group->rank() / 2);
    EXPECT_EQ(sharded->shard_group()->size(), 2);
    EXPECT_EQ(sharded->group().size(), 4);
    EXPECT_NE(sharded->to_string().find("2 copies, each sharded over 2 ranks"), std::string::npos);
  });
}

TEST(Hybrid, WithoutAGroupSizeEachHostIsAGroup) {
  EXPECT_EQ(groups_by_host({"a", "a", "b", "b"}), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(groups_by_host({"b", "a", "b", "a"}), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_THROW(groups_by_host({"a", "a", "b"}), ConfigError);
  comm::run_threads(3, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    EXPECT_EQ(fully_shard(net, group, hybrid(0, GatherForm::kAuto))->shard_group()->size(), 3);
  });
}

TEST(Hybrid, GroupSizesThatDoNotFitAreErrors) {
  comm::run_threads(3, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    EXPECT_THROW(fully_shard(net, group, hybrid(2, GatherForm::kAuto)), ConfigError);
    EXPECT_THROW(fully_shard(net, group, {.shard_group_size = 3}), ConfigError);
  });
}

}  // namespace
}  // namespace tessera::fsdp
