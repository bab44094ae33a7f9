// What users meet: named errors, failures in forward, no_grad, destruction, policies that match nothing, the printed
// model.
#include <gtest/gtest.h>

#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::SmallNet;

template <class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

void with_model(GatherForm form, const std::function<void(SmallNet&, FullyShardedDataParallel&, int)>& body) {
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"}), .gather = form});
    body(net, *sharded, group->rank());
  });
}

TEST(States, ReadingAShardedParameterNamesIt) {
  for (auto form : kForms)
    with_model(form, [](SmallNet& net, FullyShardedDataParallel&, int) {
      const auto message = message_of([&] { net.blocks[1]->up->weight.sum(); });
      EXPECT_NE(message.find("parameter 'block1.up.weight' is sharded; unshard its unit first"), std::string::npos)
          << message;
      EXPECT_EQ(net.blocks[1]->up->weight.size(0), 11);
    });
}

TEST(States, AFailingForwardLeavesNothingGatheredAndTheModelUsable) {
  for (auto form : kForms)
    with_model(form, [](SmallNet& net, FullyShardedDataParallel& sharded, int rank) {
      const auto before = loss_of(net(batch(rank, 0)), rank, 0).item<double>();
      net.blocks[1]->throws = true;
      EXPECT_THROW(net(batch(rank, 0)), std::runtime_error);
      EXPECT_EQ(sharded.memory().gathered_bytes, 0);
      EXPECT_FALSE(message_of([&] { net.stem->weight.sum(); }).empty());
      net.blocks[1]->throws = false;
      auto loss = loss_of(net(batch(rank, 0)), rank, 0);
      EXPECT_EQ(loss.item<double>(), before);
      loss.backward();
      EXPECT_TRUE(sharded.parameters()[0].grad().defined());
    });
}

TEST(States, AFailingBackwardLeavesTheModelUsable) {
  with_model(GatherForm::kShared, [](SmallNet& net, FullyShardedDataParallel& sharded, int rank) {
    auto x = net(batch(rank, 0));
    x.register_hook([](const at::Tensor&) { throw std::runtime_error("no gradient today"); });
    EXPECT_THROW(loss_of(x, rank, 0).backward(), std::runtime_error);
    x = at::Tensor();
    loss_of(net(batch(rank, 0)), rank, 0).backward();
    for (const auto& p : sharded.parameters()) EXPECT_TRUE(p.grad().defined());
  });
}

TEST(States, AfterAFailingBackwardThoseOfEarlierForwardsReduce) {
  for (auto form : kForms)
    with_model(form, [](SmallNet& net, FullyShardedDataParallel& sharded, int rank) {
      const auto backward = [&](at::Tensor& loss) {
        loss.backward();
        loss = at::Tensor();
        std::map<std::string, at::Tensor> grads;
        sharded.visit_full_grads([&](const std::string& name, const at::Tensor& g) { grads[name] = g.clone(); });
        sharded.zero_grad();
        return grads;
      };
      auto alone = loss_of(net(batch(rank, 1)), rank, 1);
      const auto expected = backward(alone);
      auto failing = net(batch(rank, 0));
      auto loss = loss_of(net(batch(rank, 1)), rank, 1);
      failing.register_hook([](const at::Tensor&) { throw std::runtime_error("no gradient today"); });
      EXPECT_THROW(loss_of(failing, rank, 0).backward(), std::runtime_error);
      const auto found = backward(loss);
      ASSERT_EQ(found.size(), expected.size());
      for (const auto& [name, g] : found) EXPECT_TRUE(at::equal(g, expected.at(name))) << name;
    });
}

TEST(States, SeveralForwardsMayHaveABackwardEach) {
  std::map<std::string, at::Tensor> expected;
  SmallNet alone({.twice = true});
  for (int rank = 0; rank < 2; ++rank)
    for (int i = 0; i < 3; ++i) (loss_of(alone(batch(rank, i)), rank, i) / 2).backward();
  for (auto& p : alone.named_parameters()) expected[p.key()] = p.value().grad();
  for (auto form : kForms)
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp})
      comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
        SmallNet net({.twice = true});
        auto sharded =
            fully_shard(net, group, {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form});
        std::vector<at::Tensor> losses;
        for (int i = 0; i < 3; ++i) losses.push_back(loss_of(net(batch(group->rank(), i)), group->rank(), i));
        for (const int i : {1, 2, 0}) losses[static_cast<std::size_t>(i)].backward();
        EXPECT_EQ(sharded->memory().gathered_bytes, 0);
        sharded->visit_full_grads([&](const std::string& name, const at::Tensor& g) {
          EXPECT_TRUE(at::allclose(g, expected[name], 1e-5, 1e-6)) << name;
        });
      });
}

TEST(States, AUnitMayRunWithoutTheRoot) {
  const auto x = testing::fixed_values({4, SmallNet::kDim}, 7, 1);
  SmallNet alone;
  (*alone.blocks[1])(x).pow(2).sum().backward();
  for (auto form : kForms)
    with_model(form, [&](SmallNet& net, FullyShardedDataParallel& sharded, int) {
      (*net.blocks[1])(x).pow(2).sum().backward();
      EXPECT_EQ(sharded.memory().gathered_bytes, 0);
      std::map<std::string, at::Tensor> grads;
      sharded.visit_full_grads([&](const std::string& name, const at::Tensor& g) { grads[name] = g.clone(); });
      for (auto& p : alone.named_parameters()) {
        const auto& expected = p.value().grad();
        EXPECT_TRUE(expected.defined() ? at::allclose(grads.at(p.key()), expected, 1e-5, 1e-6)
                                       : at::equal(grads.at(p.key()), at::zeros_like(p.value())))
            << p.key();
      }
    });
}

TEST(States, ForwardWithoutGradReleasesEverything) {
  for (auto form : kForms)
    with_model(form, [](SmallNet& net, FullyShardedDataParallel& sharded, int rank) {
      const auto with_grad = net(batch(rank, 0)).detach();
      at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(net(batch(rank, 0)), with_grad));
      EXPECT_FALSE(message_of([&] { net.blocks[0]->scale.sum(); }).empty());
      EXPECT_EQ(sharded.comm_stats().reductions, 0);
    });
}

TEST(States, AnOutputThatTheLossDoesNotUseIsSwept) {
  for (auto form : kForms)
    with_model(form, [](SmallNet& net, FullyShardedDataParallel& sharded, int rank) {
      auto unused = net(batch(rank, 1));
      loss_of(net(batch(rank, 0)), rank, 0).backward();
      EXPECT_EQ(sharded.memory().gathered_bytes, 0);
      EXPECT_EQ(sharded.comm_stats().reductions, 4);
      for (const auto& p : sharded.parameters()) EXPECT_TRUE(p.grad().defined());
    });
}

TEST(States, OptimizersMayOutliveTheModelAndParametersSaySo) {
  comm::run_threads(2, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    std::vector<at::Tensor> parameters;
    {
      auto sharded = fully_shard(net, group, {.gather = GatherForm::kShared});
      parameters = sharded->parameters();
    }
    EXPECT_TRUE(at::isfinite(parameters[0].detach().sum()).item<bool>());
    EXPECT_NE(message_of([&] { net.stem->weight.sum(); }).find("was destroyed"), std::string::npos);
    EXPECT_FALSE(net.hooked());
  });
}

TEST(States, ShardsCoverEveryParameterAndAliasTheLeaves) {
  std::map<std::string, std::int64_t> covered;
  std::mutex mutex;
  comm::run_threads(3, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"})});
    const auto parameters = sharded->parameters();
    for (const auto& s : sharded->shards()) {
      if (s.parameter >= 0) {
        const auto& leaf = parameters[static_cast<std::size_t>(s.parameter)];
        EXPECT_EQ(s.local.data_ptr(), static_cast<float*>(leaf.data_ptr()) + s.parameter_offset) << s.name;
      } else {
        EXPECT_EQ(s.local.numel(), 0) << s.name;
      }
      std::lock_guard<std::mutex> lock(mutex);
      covered[s.name] += s.local.numel();
    }
  });
  SmallNet net;
  for (auto& p : net.named_parameters()) EXPECT_EQ(covered[p.key()], p.value().numel()) << p.key();
}

TEST(States, ValuesWrittenToShardsAreSeenAfterMarkUpdated) {
  for (auto form : kForms)
    with_model(form, [](SmallNet& net, FullyShardedDataParallel& sharded, int rank) {
      at::NoGradGuard no_grad;
      for (auto& s : sharded.shards())
        if (s.name == "head.bias") s.local.fill_(100);
      sharded.mark_updated();
      EXPECT_GT(net(batch(rank, 0)).min().item<float>(), 50);
    });
}

TEST(WrapPolicy, AClassThatMatchesNothingNamesTheClassesThereAre) {
  const auto message = message_of([] {
    SmallNet net;
    fully_shard(net, comm::make_solo(), {.wrap = wrap_classes({"T5Block"})});
  });
  EXPECT_NE(message.find("'T5Block'"), std::string::npos) << message;
  EXPECT_NE(message.find("Affine, MlpBlock"), std::string::npos) << message;
}

TEST(WrapPolicy, PeftWrapsTrainableLeavesAndTheGivenClasses) {
  SmallNet net;
  for (auto& p : net.parameters()) p.set_requires_grad(false);
  net.head->weight.set_requires_grad(true);
  auto sharded = fully_shard(net, comm::make_solo(), {.wrap = wrap_peft({"MlpBlock"})});
  const auto text = sharded->to_string();
  std::size_t units = 0;
  for (auto at = text.find("FullyShardedDataParallel("); at != std::string::npos;
       at = text.find("FullyShardedDataParallel(", at + 1))
    ++units;
  EXPECT_EQ(units, 1u + 3u + 1u) << text;
}

TEST(WrapPolicy, BySizeCountsWhatIsLeftOver) {
  SmallNet net;
  const auto policy = wrap_size(80);  // Affine(7, 11) has 88, what is left of a block after it is 85
  EXPECT_TRUE(policy("", *net.blocks[0]->up));
  EXPECT_TRUE(policy("", *net.blocks[0]->down));
  EXPECT_FALSE(policy("", *net.blocks[0]));
  EXPECT_FALSE(wrap_size(0)("", net));
}

TEST(PrintedModel, ShowsUnitsShardsDtypesAndForms) {
  SmallNet net;
  net.stem->weight.set_requires_grad(false);
  auto sharded = fully_shard(net, comm::make_solo(),
                             {.wrap = wrap_classes({"MlpBlock"}), .precision = {.param_dtype = at::kBFloat16}});
  const auto text = sharded->to_string();
  EXPECT_NE(text.find("(block0): FullyShardedDataParallel("), std::string::npos) << text;
  EXPECT_NE(text.find("shard 1 x"), std::string::npos) << text;
  EXPECT_NE(text.find("computed in BFloat16"), std::string::npos) << text;
  EXPECT_NE(text.find("frozen"), std::string::npos) << text;
}

TEST(FullyShard, RefusesToShardTwice) {
  SmallNet net;
  auto sharded = fully_shard(net, comm::make_solo(), {});
  EXPECT_THROW(fully_shard(net, comm::make_solo(), {}), ConfigError);
}

}  // namespace
}  // namespace tessera::fsdp
