// FullyShardedDataParallel::step(): the optimizer's work goes on while the next forward computes on a device, and
// nobody can tell by the numbers.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "support/fake_device.h"
#include "support/fake_streams.h"
#include "support/on_device.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/optim/factory.h"
#include "tessera/optim/update.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::loss_of;
using testing::on_device;
using testing::SmallNet;

/// AdamW that does something before each flat parameter.
class SlowAdamW final : public optim::Optimizer {
 public:
  SlowAdamW(FullyShardedDataParallel& model, std::function<void(std::size_t)> before)
      : Optimizer(model.parameters(), parameter_slices(model), 1e-2), before_(std::move(before)) {
    for (const auto& p : parameters_)
      parts_.push_back(std::make_unique<optim::AdamW>(std::vector<at::Tensor>{p}, testing::adamw_options()));
  }
  void step() override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      before_(i);
      parts_[i]->scale_next_gradients(gradient_factor_);
      parts_[i]->step();
      updated(i);
    }
    gradient_factor_ = 1;
    ++steps_;
  }
  std::vector<optim::StateSlice> state() override { return {}; }

 private:
  std::function<void(std::size_t)> before_;
  std::vector<std::unique_ptr<optim::AdamW>> parts_;  // each of one
};

void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

FsdpOptions by_block() {
  return {.wrap = wrap_classes({"MlpBlock"})};
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

enum class Steps { kAtOnce, kInBackground };

/// Four steps of two micro-batches, and after the second an evaluation.
std::vector<Trained> train(int world, const FsdpOptions& options, Steps steps,
                           const std::function<std::unique_ptr<optim::Optimizer>(FullyShardedDataParallel&)>& make,
                           testing::NetOptions net_options = {}) {
  std::vector<Trained> outcomes(static_cast<std::size_t>(world));
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    auto& outcome = outcomes[static_cast<std::size_t>(group->rank())];
    SmallNet net(net_options);
    net.blocks[1]->up->weight.set_requires_grad(false);
    const auto sharded = fully_shard(net, group, on_device(options, *group));
    const auto optimizer = make(*sharded);
    for (int step = 0; step < 4; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        sharded->set_requires_gradient_sync(micro == 1);
        const auto loss = loss_of(net(batch(group->rank(), 2 * step + micro)), group->rank(), step);
        outcome.losses.push_back(loss.item<double>());
        loss.backward();
      }
      sharded->clip_grad_norm(0.05, *optimizer);
      if (steps == Steps::kInBackground) {
        sharded->step(*optimizer);
      } else {
        optimizer->step();
        optimizer->zero_grad();
      }
      if (step == 1) {
        const at::NoGradGuard no_grad;
        for (int i = 0; i < 2; ++i)
          outcome.losses.push_back(loss_of(net(batch(group->rank(), 50 + i)), group->rank(), 50).item<double>());
      }
    }
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) { outcome.weights[name] = t.clone(); });
  });
  return outcomes;
}

void expect_same(const std::vector<Trained>& a, const std::vector<Trained>& b) {
  for (std::size_t r = 0; r < a.size(); ++r) {
    EXPECT_EQ(a[r].losses, b[r].losses) << "rank " << r;
    for (const auto& [name, t] : a[r].weights) EXPECT_TRUE(at::equal(t, b[r].weights.at(name))) << name;
  }
}

/// The ranks take turns in being late.
std::unique_ptr<optim::Optimizer> slow(FullyShardedDataParallel& model) {
  const int rank = model.group().rank();
  return std::make_unique<SlowAdamW>(model, [rank](std::size_t i) {
    if (static_cast<int>(i) % 2 == rank % 2) pause(2);
  });
}

TEST(BackgroundStep, TrainsWithTheSameBits) {
  const test::FakeKernels kernels;
  const test::FakeStreams streams(11);
  for (const int world : {1, 2, 3})
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      auto options = by_block();
      options.strategy = strategy;
      expect_same(train(world, options, Steps::kAtOnce, slow), train(world, options, Steps::kInBackground, slow));
    }
  EXPECT_EQ(test::FakeStreams::fault(), "");
}

TEST(BackgroundStep, TrainsWithTheSameBitsInLowPrecisionWithTiesIgnoredModulesAndReplicas) {
  const test::FakeKernels kernels;
  const test::FakeStreams streams(12);
  auto options = by_block();
  options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat};
  const testing::NetOptions net{.tied = true, .unused = true, .twice = true};
  expect_same(train(2, options, Steps::kAtOnce, slow, net), train(2, options, Steps::kInBackground, slow, net));
  options = by_block();
  options.ignored_modules = named_like("block0\\.up|stem");
  expect_same(train(2, options, Steps::kAtOnce, slow), train(2, options, Steps::kInBackground, slow));
  options = by_block();
  options.strategy = ShardingStrategy::kHybridShard;
  options.shard_group_size = 2;
  options.activation_checkpointing = same_as_wrap();
  expect_same(train(4, options, Steps::kAtOnce, slow), train(4, options, Steps::kInBackground, slow));
  EXPECT_EQ(test::FakeStreams::fault(), "");
}

TEST(BackgroundStep, TakesTheOptimizersThatAreThere) {
  const test::FakeKernels kernels;
  for (const int world : {1, 2})
    for (const char* name :
         {"adamw_torch", "adamw_bnb_8bit", "adafactor", "schedule_free_adamw", "sgd", "lion_32bit"}) {
      const auto make = [&](FullyShardedDataParallel& model) {
        auto optimizer =
            optim::make_optimizer(name, {.lr = 1e-2}, model.parameters(), parameter_slices(model), model.shard_group());
        optimizer->keep_state_in(model.offload_store());  // masters in halves
        return optimizer;
      };
      auto options = by_block();
      options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat};
      SCOPED_TRACE(name);
      expect_same(train(world, options, Steps::kAtOnce, make), train(world, options, Steps::kInBackground, make));
    }
}

TEST(BackgroundStep, AForwardBeginsBeforeTheStepHasEnded) {
  std::promise<void> first_block_ran;
  auto ran = first_block_ran.get_future().share();
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    const auto sharded = fully_shard(net, group, on_device(by_block(), *group));
    const auto last = sharded->parameters().size() - 1;
    bool waited_in_vain = false;
    SlowAdamW optimizer(*sharded, [&](std::size_t i) {
      if (i == last) waited_in_vain = ran.wait_for(std::chrono::seconds(20)) != std::future_status::ready;
    });
    loss_of(net(batch(0, 0)), 0, 0).backward();
    sharded->step(optimizer);
    net.blocks[0]->ran = [&] { first_block_ran.set_value(); };
    net(batch(0, 1));
    EXPECT_FALSE(waited_in_vain);
    sharded->finish_step();
    EXPECT_EQ(optimizer.steps(), 1);
    for (const auto& p : sharded->parameters()) EXPECT_FALSE(p.grad().defined());
  });
}

TEST(BackgroundStep, WhatAStepThrowsEndsTheForwardAndTheNextStepIsTaken) {
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    const auto sharded = fully_shard(net, group, on_device(by_block(), *group));
    bool fails = true;
    SlowAdamW optimizer(*sharded, [&](std::size_t i) {
      if (i == 2 && fails) throw Error("a failing step");
    });
    loss_of(net(batch(0, 0)), 0, 0).backward();
    sharded->step(optimizer);
    EXPECT_THROW(net(batch(0, 1)), Error);
    EXPECT_THROW(sharded->finish_step(), Error);
    fails = false;
    loss_of(net(batch(0, 1)), 0, 1).backward();
    sharded->step(optimizer);
    sharded->finish_step();
    EXPECT_EQ(optimizer.steps(), 1);
  });
}

// Sanitizers see it where it does.
TEST(BackgroundStep, AnOptimizerWhoseStepFailedTellsNobodyAfterwards) {
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    auto sharded = fully_shard(net, group, on_device(by_block(), *group));
    bool fails = true;
    SlowAdamW optimizer(*sharded, [&](std::size_t i) {
      if (i == 2 && fails) throw Error("a failing step");
    });
    loss_of(net(batch(0, 0)), 0, 0).backward();
    sharded->step(optimizer);
    EXPECT_THROW(sharded->finish_step(), Error);
    sharded.reset();
    fails = false;
    optimizer.step();
  });
}

TEST(BackgroundStep, CallsThatReadSlicesWaitForIt) {
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    const auto sharded = fully_shard(net, group, on_device(by_block(), *group));
    std::atomic<bool> ended = false;
    const auto last = sharded->parameters().size() - 1;
    SlowAdamW optimizer(*sharded, [&](std::size_t i) {
      pause(5);
      if (i == last) ended = true;
    });
    const std::function<void()> calls[] = {
        [&] { sharded->parameters(); },
        [&] { sharded->shards(); },
        [&] { sharded->memory(); },
        [&] { sharded->mark_updated(); },
        [&] { sharded->zero_grad(); },
        [&] { sharded->clip_grad_norm(1.0); },
        [&] { sharded->visit_full([](const std::string&, const at::Tensor&) {}); },
        [&, like = sharded->parameters()] {
          sharded->visit_full_of(like, [](const std::string&, const at::Tensor&) {});
        },
        [&] { sharded->visit_full_grads([](const std::string&, const at::Tensor&) {}); },
        [&] { sharded->step(optimizer); },
    };
    for (const auto& call : calls) {
      loss_of(net(batch(group->rank(), 0)), group->rank(), 0).backward();
      ended = false;
      sharded->step(optimizer);
      call();
      EXPECT_TRUE(ended);
      sharded->finish_step();
      group->barrier();
    }
  });
}

TEST(BackgroundStep, OnTheProcessorAStepIsTakenAtOnce) {
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    const auto sharded = fully_shard(net, group, by_block());
    const auto here = std::this_thread::get_id();
    SlowAdamW optimizer(*sharded, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), here); });
    loss_of(net(batch(group->rank(), 0)), group->rank(), 0).backward();
    sharded->step(optimizer);
    EXPECT_EQ(optimizer.steps(), 1);
  });
}

}  // namespace
}  // namespace tessera::fsdp
