// Ranks that do not do the same: named, within the timeout.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "support/fake_device.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::SmallNet;

FsdpOptions blocks_in(GatherForm form, bool check_order) {
  return {.wrap = wrap_classes({"MlpBlock"}), .gather = form, .check_order = check_order};
}

/// What each rank's body threw; collectives wait for 400 ms at most.
std::vector<std::string> errors_of(int world, const std::function<void(std::shared_ptr<comm::Communicator>)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  auto ranks = comm::make_threads(world, std::chrono::milliseconds(400));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r, communicator = std::move(ranks[static_cast<std::size_t>(r)])]() mutable {
      try {
        body(std::move(communicator));
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Divergence, TheOrderCheckNamesRanksAndUnits) {
  for (auto form : kForms) {
    const auto errors = errors_of(3, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      auto sharded = fully_shard(net, group, blocks_in(form, true));
      net.options.skip = group->rank() == 1 ? 1 : -1;
      loss_of(net(batch(group->rank(), 0)), group->rank(), 0).backward();
    });
    for (const auto& error : errors) {
      EXPECT_TRUE(says(error, "ranks run different units (event 3 of this step)")) << error;
      EXPECT_TRUE(says(error, "rank 0, 2: forward of unit 'block1'")) << error;
      EXPECT_TRUE(says(error, "rank 1: forward of unit 'block2'")) << error;
    }
  }
}

TEST(Divergence, TheOrderCheckIsSilentWhereRanksAgree) {
  for (auto form : kForms) {
    const auto checked = testing::train_sharded(3, {.twice = true}, blocks_in(form, true));
    const auto plain = testing::train_sharded(3, {.twice = true}, blocks_in(form, false));
    EXPECT_EQ(worst_difference(checked[0], plain[0]), 0.0);
  }
}

TEST(Divergence, ARankThatStaysAwayIsNamedWithWhatAllWereDoing) {
  const auto errors = errors_of(3, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, blocks_in(GatherForm::kCopy, false));
    const auto x = batch(group->rank(), 0);
    if (group->rank() == 1) {
      at::NoGradGuard no_grad;
      net(x);
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // "loads its next batch"
      return;
    }
    net(x);
    loss_of(net(x), group->rank(), 0).backward();
  });
  const auto& error = errors[0].empty() ? errors[2] : errors[0];
  EXPECT_TRUE(says(error, "rank 1 has not arrived")) << error;
  EXPECT_TRUE(says(error, "(in forward of unit 'block2')")) << "the last thing that rank 1 did: " << error;
}

TEST(Divergence, OneStepMoreThanTheOthersStopsWithAnError) {
  for (auto form : kForms) {
    const auto errors = errors_of(2, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      auto sharded = fully_shard(net, group, blocks_in(form, false));
      for (int step = 0; step < 1 + group->rank(); ++step)
        loss_of(net(batch(group->rank(), step)), group->rank(), step).backward();
    });
    EXPECT_TRUE(says(errors[1], "rank 0 has left the group")) << errors[1];
    EXPECT_TRUE(says(errors[1], "between backward and the next forward")) << errors[1];
  }
}

/// The same parameters as SmallNet has, but two blocks are registered the other way round.
class Swapped final : public nn::Layer {
 public:
  explicit Swapped(bool swapped) {
    first = std::make_shared<testing::MlpBlock>(4, 5, 1);
    second = std::make_shared<testing::MlpBlock>(4, 5, 2);
    register_module(swapped ? "second" : "first", swapped ? second : first);
    register_module(swapped ? "first" : "second", swapped ? first : second);
  }
  std::string class_name() const override { return "Swapped"; }
  std::shared_ptr<testing::MlpBlock> first, second;

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return (*second)((*first)(x)); }
};

TEST(Divergence, ModelsThatWereBuiltInAnotherOrderAreRefused) {
  const auto errors = errors_of(3, [&](std::shared_ptr<comm::Communicator> group) {
    Swapped net(group->rank() == 2);
    fully_shard(net, group, blocks_in(GatherForm::kAuto, false));
  });
  for (const auto& error : errors) {
    EXPECT_TRUE(says(error, "ranks 0 and 2 do not shard the same model in the same way")) << error;
    EXPECT_TRUE(says(error, "'first'") && says(error, "'second'")) << error;
  }
}

TEST(Divergence, OtherOptionsOnOneRankAreRefused) {
  const auto errors_with = [](const std::function<void(FsdpOptions&)>& change) {
    return errors_of(3, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      auto options = blocks_in(GatherForm::kAuto, false);
      if (group->rank() == 1) change(options);
      fully_shard(net, group, options);
    });
  };
  const std::pair<std::function<void(FsdpOptions&)>, const char*> changes[] = {
      {[](auto& o) { o.strategy = ShardingStrategy::kShardGradOp; },
       "rank 0 has the strategy FULL_SHARD, rank 1 has the strategy SHARD_GRAD_OP"},
      {[](auto& o) { o.precision.param_dtype = at::kBFloat16; },
       "rank 0 has parameters in no cast, rank 1 has parameters in BFloat16"},
      {[](auto& o) { o.gather = GatherForm::kCopy; }, "rank 1 has gathers of the form copy"},
      {[](auto& o) { o.forward_prefetch = false; }, "rank 1 has forward prefetch false"},
      {[](auto& o) { o.device = test::fake_device(0); },
       "rank 0 has computation on the device type cpu, rank 1 has computation on the device type fake"}};
  for (const auto& [change, what] : changes)
    for (const auto& error : errors_with(change)) EXPECT_TRUE(says(error, what)) << error;
}

TEST(Divergence, WhatTrainsMustBeTheSameEverywhere) {
  const auto errors = errors_of(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    net.stem->bias.set_requires_grad(group->rank() == 0);
    fully_shard(net, group, blocks_in(GatherForm::kAuto, false));
  });
  EXPECT_TRUE(says(errors[1], "trainable parameter 'stem.bias'")) << errors[1];
}

TEST(Divergence, OtherWeightsOnOneRankAreRefused) {
  const auto errors_with = [](double more) {
    return errors_of(3, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      std::vector<std::pair<std::string, at::Tensor>> weights;
      for (const auto& item : net.named_parameters()) weights.emplace_back(item.key(), item.value().detach().clone());
      if (group->rank() == 1) weights.back().second.add_(more);
      auto options = blocks_in(GatherForm::kAuto, false);
      options.source = io::memory_source(std::move(weights));
      fully_shard(net, group, std::move(options));
    });
  };
  for (const auto& error : errors_with(0)) EXPECT_EQ(error, "");
  const std::string last = SmallNet().named_parameters().back().key();
  for (const auto& error : errors_with(1))
    EXPECT_TRUE(says(error, "ranks 0 and 1 read different weights: '" + last + "' is not the same")) << error;
}

}  // namespace
}  // namespace tessera::fsdp
