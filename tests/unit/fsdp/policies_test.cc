// The precision policies of PyTorch's FSDP tutorial, and what starts from rank 0's values.
#include <gtest/gtest.h>

#include "support/train_small_net.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::SmallNet;
using testing::train_alone;
using testing::train_sharded;

MixedPrecision all_in(at::ScalarType dtype) {
  return {.param_dtype = dtype, .reduce_dtype = dtype, .buffer_dtype = dtype};
}

FsdpOptions with_policy(GatherForm form, MixedPrecision precision) {
  return {.wrap = wrap_classes({"MlpBlock"}), .precision = precision, .gather = form};
}

TEST(TutorialPolicies, Fp32PolicyIsNoPolicy) {
  for (auto form : kForms) {
    const auto named = train_sharded(2, {}, with_policy(form, all_in(at::kFloat)));
    EXPECT_EQ(worst_difference(named[0], train_sharded(2, {}, with_policy(form, {}))[0]), 0.0);
    EXPECT_LE(worst_difference(named[0], train_alone(2, {})), 1e-6);
  }
}

TEST(TutorialPolicies, SixteenBitPoliciesFollowFp32) {
  const auto alone = train_alone(2, {});
  for (auto dtype : {at::kHalf, at::kBFloat16})
    for (auto form : kForms) {
      const auto ranks = train_sharded(2, {}, with_policy(form, all_in(dtype)));
      const double tolerance = dtype == at::kHalf ? 5e-3 : 3e-2;
      for (std::size_t i = 0; i < alone.losses.size(); ++i)
        EXPECT_NEAR((ranks[0].losses[i] + ranks[1].losses[i]) / 2, alone.losses[i], tolerance * alone.losses[i]);
      EXPECT_GT(worst_difference(ranks[0], alone), 0.0);
      EXPECT_EQ(worst_difference(ranks[0], ranks[1]), 0.0);
      for (const auto& [name, t] : ranks[0].weights) EXPECT_EQ(t.scalar_type(), at::kFloat) << name;
    }
}

TEST(TutorialPolicies, GradientsAloneMayBeBf16) {
  const auto fp32 = train_sharded(2, {}, with_policy(GatherForm::kAuto, {}));
  for (auto form : kForms) {
    const auto ranks = train_sharded(2, {}, with_policy(form, {.reduce_dtype = at::kBFloat16}));
    EXPECT_EQ(ranks[0].losses[0], fp32[0].losses[0]) << "the forward is in full precision";
    EXPECT_NE(ranks[0].norms[0], fp32[0].norms[0]);
    EXPECT_NEAR(ranks[0].norms[0], fp32[0].norms[0], 0.01 * fp32[0].norms[0]);
  }
}

TEST(TutorialPolicies, TheFirstForwardSeesTheValuesOfTheFile) {
  SmallNet values;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto& p : values.named_parameters()) tensors.emplace_back(p.key(), p.value().detach());
  const auto file = ::testing::TempDir() + "first_forward.safetensors";
  io::write_safetensors(file, tensors);
  const std::shared_ptr<const io::TensorSource> source = io::open_safetensors(file);
  std::vector<at::Tensor> outputs;
  for (auto form : kForms)
    comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      for (auto& p : net.parameters()) p.set_data(tensor::make_detached(p.sizes(), at::kFloat, "to be read"));
      auto options = with_policy(form, all_in(at::kBFloat16));
      options.source = source;
      auto sharded = fully_shard(net, group, options);
      const auto y = net(batch(0, 0)).detach();
      if (group->rank() == 0) outputs.push_back(y);
    });
  EXPECT_TRUE(at::equal(outputs.at(0), outputs.at(1)));
  EXPECT_TRUE(at::allclose(outputs[0].to(at::kFloat), values(batch(0, 0)).detach(), 0.05, 0.02));
}

/// The dtypes of a floating and an integer buffer inside a block after sharding.
std::pair<at::ScalarType, at::ScalarType> buffers_under(MixedPrecision precision) {
  SmallNet net;
  net.blocks[1]->register_buffer("table", at::ones({3}));
  net.blocks[1]->register_buffer("count", at::ones({3}, at::kLong));
  auto sharded = fully_shard(net, comm::make_solo(), with_policy(GatherForm::kAuto, precision));
  const auto buffers = net.named_buffers();
  return {buffers["block1.table"].scalar_type(), buffers["block1.count"].scalar_type()};
}

TEST(TutorialPolicies, BuffersAreCastByTheirOwnDtypeOnly) {
  EXPECT_EQ(buffers_under({}).first, at::kFloat);
  EXPECT_EQ(buffers_under({.param_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16}).first, at::kFloat);
  EXPECT_EQ(buffers_under({.buffer_dtype = at::kBFloat16}).first, at::kBFloat16);
  EXPECT_EQ(buffers_under({.buffer_dtype = at::kHalf}).first, at::kHalf);
  EXPECT_EQ(buffers_under({.buffer_dtype = at::kHalf}).second, at::kLong);
}

TEST(SyncModuleStates, RankZeroDecides) {
  for (auto form : kForms)
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard})
      comm::run_threads(4, [&](std::shared_ptr<comm::Communicator> group) {
        SmallNet net, same;
        const int rank = group->rank();
        {
          at::NoGradGuard no_grad;
          for (auto& p : net.parameters()) p.mul_(rank + 1);
        }
        net.blocks[0]->register_buffer("table", at::full({2, 2}, rank));
        net.blocks[0]->register_buffer("flag", at::full({}, rank == 0, at::kBool));
        if (rank > 0)
          net.head->weight.set_data(tensor::make_detached(net.head->weight.sizes(), at::kFloat, "none yet"));
        auto options = with_policy(form, {});
        options.strategy = strategy;
        options.shard_group_size = strategy == ShardingStrategy::kHybridShard ? 2 : 0;
        options.sync_module_states = true;
        auto sharded = fully_shard(net, group, options);
        const auto expected = same.named_parameters();
        sharded->visit_full(
            [&](const std::string& name, const at::Tensor& t) { EXPECT_TRUE(at::equal(t, expected[name])) << name; });
        EXPECT_TRUE(at::equal(net.named_buffers()["block0.table"], at::zeros({2, 2})));
        EXPECT_TRUE(net.named_buffers()["block0.flag"].item<bool>());
      });
}

TEST(SyncModuleStates, RankZeroMustHaveValues) {
  try {
    comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      net.head->weight.set_data(tensor::make_detached(net.head->weight.sizes(), at::kFloat, "none yet"));
      auto options = with_policy(GatherForm::kAuto, {});
      options.sync_module_states = true;
      fully_shard(net, group, options);
    });
    FAIL() << "no error";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("parameter 'head.weight' has no value"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tessera::fsdp
