// Modules that the runtime leaves whole.
#include <gtest/gtest.h>

#include "support/train_small_net.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::loss_of;
using testing::SmallNet;
using testing::train_alone;
using testing::train_sharded;
using testing::TrainOptions;

FsdpOptions without(const std::string& pattern, GatherForm form = GatherForm::kAuto,
                    ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  return {
      .strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form, .ignored_modules = named_like(pattern)};
}

TEST(IgnoredModules, TrainLikeAllOthers) {
  for (int world : {1, 2, 3}) {
    const auto alone = train_alone(world, {});
    for (auto form : {GatherForm::kCopy, GatherForm::kShared})
      for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
        for (const char* pattern : {"stem", "block1", "block0\\.up|head"}) {
          SCOPED_TRACE(pattern);
          const auto ranks = train_sharded(world, {}, without(pattern, form, strategy));
          EXPECT_LE(worst_difference(ranks[0], alone), 1e-6);
          for (const auto& rank : ranks) EXPECT_EQ(worst_difference(rank, ranks[0]), 0.0);
          for (std::size_t i = 0; i < alone.norms.size(); ++i)
            EXPECT_NEAR(ranks[0].norms[i], alone.norms[i], 1e-6 * alone.norms[i]);
        }
  }
}

TEST(IgnoredModules, FrozenOnesAndHybridToo) {
  const TrainOptions how{.prepare = [](SmallNet& net) {
    for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
  }};
  const auto alone = train_alone(4, {}, how);
  for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
    auto options = without("block1|stem", form, ShardingStrategy::kHybridShard);
    options.shard_group_size = 2;
    EXPECT_LE(worst_difference(train_sharded(4, {}, options, how)[3], alone), 1e-6);
  }
}

TEST(IgnoredModules, AreReadableAtAnyTimeAndKeepTheirDtypes) {
  for (auto form : {GatherForm::kCopy, GatherForm::kShared})
    comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net, same;
      net.stem->register_buffer("table", at::ones({2}));
      net.blocks[0]->register_buffer("table", at::ones({2}));
      auto options = without("stem", form);
      options.precision = {.param_dtype = at::kBFloat16, .buffer_dtype = at::kBFloat16, .output_dtype = at::kFloat};
      auto sharded = fully_shard(net, group, options);
      EXPECT_FALSE(net.stem->hooked());
      EXPECT_TRUE(at::equal(net.stem->weight, same.stem->weight));
      EXPECT_EQ(net.stem->named_buffers()["table"].scalar_type(), at::kFloat);
      EXPECT_EQ(net.blocks[0]->named_buffers()["table"].scalar_type(), at::kBFloat16);
      EXPECT_TRUE(tensor::is_detached(net.blocks[0]->scale) || form == GatherForm::kShared);
      EXPECT_EQ(net.head->weight.scalar_type(), at::kBFloat16);
      std::int64_t whole = 0;
      sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
        if (name.starts_with("stem")) {
          EXPECT_EQ(t.scalar_type(), at::kFloat);
        }
        whole += t.numel();
      });
      EXPECT_EQ(whole, 42 + 7 + 42 + 6 + 3 * (77 + 11 + 77 + 7 + 1));
      EXPECT_NE(sharded->to_string().find("ignored modules: 2 trainable"), std::string::npos);
    });
}

TEST(IgnoredModules, AreNoUnitsAndMustExist) {
  comm::run_threads(1, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    {
      auto sharded = fully_shard(net, group, without("block."));
      for (auto& b : net.blocks) EXPECT_FALSE(b->hooked());
    }
    EXPECT_THROW(fully_shard(net, group, without("blok.")), ConfigError);
    EXPECT_THROW(fully_shard(net, group, without(".*")), ConfigError);
    EXPECT_THROW(named_like("a("), ConfigError);
  });
}

TEST(IgnoredModules, AreReadFromTheSourceWhole) {
  SmallNet values;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto& p : values.named_parameters()) tensors.emplace_back(p.key(), p.value().detach() * 2);
  const std::shared_ptr<const io::TensorSource> source = io::memory_source(tensors);
  for (auto form : {GatherForm::kCopy, GatherForm::kAuto})
    comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      for (auto& p : net.head->parameters()) p.set_requires_grad(false);
      auto options = without("stem|head", form);
      options.source = source;
      auto sharded = fully_shard(net, group, options);
      EXPECT_TRUE(at::equal(net.stem->weight, values.stem->weight * 2));
      EXPECT_TRUE(at::equal(net.head->weight, values.head->weight * 2));
    });
}

}  // namespace
}  // namespace tessera::fsdp
