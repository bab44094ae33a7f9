// The loop: batches, accumulation, clipping, schedule, overflow. Ranks are threads.
#include "train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "support/fake_device.h"
#include "support/on_device.h"
#include "support/program.h"
#include "support/small_net.h"
#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"

namespace tessera::train {
namespace {

using ::tessera::testing::SmallNet;

constexpr std::int64_t kRows = 12;

/// `per_batch` rows in every batch, shared out over the ranks; the last of an epoch has what is left. The loss of a row
/// is the mean square of its outputs. Every row counts one token.
class Rows final : public Trainable {
 public:
  Rows(SmallNet& model, comm::Communicator& group, std::int64_t per_batch)
      : model_(model), group_(group), per_batch_(per_batch) {}
  std::int64_t batches_per_epoch() const override { return (kRows + per_batch_ - 1) / per_batch_; }
  std::int64_t rows(std::int64_t batch) const override { return std::min(per_batch_, kRows - batch * per_batch_); }
  double loss_tokens(std::int64_t, std::int64_t batch) override { return static_cast<double>(rows(batch)); }
  std::int64_t input_tokens(std::int64_t, std::int64_t batch) override { return rows(batch); }
  void set_training(bool) override {}
  at::Tensor loss(std::int64_t epoch, std::int64_t batch, double normalizer) override {
    std::vector<at::Tensor> mine;
    for (std::int64_t r = group_.rank(); r < rows(batch); r += group_.size())
      mine.push_back(::tessera::testing::batch(0, static_cast<int>(batch * per_batch_ + r)).slice(0, 0, 1));
    const auto x = mine.empty() ? at::zeros({0, 6}) : at::cat(mine);
    const auto y = model_(x);
    auto loss = y.pow(2).mean(1).sum() / normalizer;
    ++calls_;
    if (spoilt_gradients_.contains(epoch * batches_per_epoch() + batch))
      loss = loss + (y * 0).sum().sqrt();  // 0, and its derivative 0 * infinity
    const auto spoilt = spoilt_.find(epoch * batches_per_epoch() + batch);
    return spoilt == spoilt_.end() ? loss : loss * spoilt->second;
  }
  /// The loss of a batch, counted from 0 over the epochs, times a factor.
  void spoil(std::int64_t batch, double factor) { spoilt_[batch] = factor; }
  /// The loss of such a batch is what it should be, its gradient is not a number.
  void spoil_gradients(std::set<std::int64_t> batches) { spoilt_gradients_ = std::move(batches); }
  int calls() const { return calls_; }

 private:
  SmallNet& model_;
  comm::Communicator& group_;
  std::int64_t per_batch_;
  std::map<std::int64_t, double> spoilt_;
  std::set<std::int64_t> spoilt_gradients_;
  int calls_ = 0;
};

/// AdamW that calls somebody when it has updated a parameter, and then tells it.
class WatchedAdamW final : public optim::Optimizer {
 public:
  using Watch = std::function<void(std::size_t parameter, std::size_t parameters)>;
  WatchedAdamW(std::vector<at::Tensor> parameters, const Watch& watch)
      : Optimizer(parameters, optim::whole_slices(parameters), 1e-2), adamw_(std::move(parameters), {.lr = 1e-2}) {
    adamw_.on_updated([this, watch](std::size_t i) {
      if (watch) watch(i, parameters_.size());
      updated(i);
    });
  }
  void step() override {
    adamw_.set_lr(lr_);
    adamw_.scale_next_gradients(std::exchange(gradient_factor_, 1));
    adamw_.step();
    ++steps_;
  }
  std::vector<optim::StateSlice> state() override { return adamw_.state(); }

 private:
  optim::AdamW adamw_;
};

struct Outcome {
  std::vector<StepReport> steps;
  std::vector<EpochReport> epochs;
  std::map<std::string, at::Tensor> weights;
  std::int64_t skipped = 0;
  double loss_scale = 0;
  int calls = 0;
  std::int64_t reductions = 0;
};

struct Job {
  TrainerOptions trainer;
  std::int64_t per_batch = 4;
  int ranks = 1;
  std::map<std::int64_t, double> spoilt;    // see Rows::spoil()
  std::set<std::int64_t> spoilt_gradients;  // see Rows::spoil_gradients()
  std::string spoilt_weight;                // a part of a name: infinite from the start
  WatchedAdamW::Watch watch;
  std::function<void(SmallNet&)> prepare = [](SmallNet&) {};
  fsdp::FsdpOptions fsdp{.wrap = fsdp::wrap_classes({"MlpBlock"})};
};

Outcome train(const Job& job) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_threads(job.ranks, [&](auto group) {
    SmallNet model;
    job.prepare(model);
    auto sharded = fsdp::fully_shard(
        model, group, job.fsdp.device.is_cpu() ? job.fsdp : ::tessera::testing::on_device(job.fsdp, *group));
    WatchedAdamW optimizer(sharded->parameters(), job.watch);
    Rows rows(model, *group, job.per_batch);
    for (const auto& [batch, factor] : job.spoilt) rows.spoil(batch, factor);
    rows.spoil_gradients(job.spoilt_gradients);
    if (!job.spoilt_weight.empty()) {
      for (const auto& shard : sharded->shards())
        if (shard.name.find(job.spoilt_weight) != std::string::npos)
          shard.local.detach().fill_(std::numeric_limits<double>::infinity());
      sharded->mark_updated();
    }
    Trainer trainer(job.trainer, rows, *sharded, optimizer);
    Outcome mine;
    trainer.run({.on_step = [&](const StepReport& s) { mine.steps.push_back(s); },
                 .on_epoch_end = [&](const EpochReport& e) { mine.epochs.push_back(e); },
                 .should_stop = nullptr,
                 .before_update = nullptr,
                 .interruption = nullptr});
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) { mine.weights[name] = t.clone(); });
    mine.skipped = trainer.skipped();
    mine.loss_scale = trainer.scaler() ? trainer.scaler()->scale() : 0;
    mine.calls = rows.calls();
    mine.reductions = sharded->comm_stats().reductions;
    const std::lock_guard lock(mutex);
    if (group->rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

/// What the run says when it ends.
std::string error_of(const Job& job) {
  try {
    train(job);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void expect_close(const Outcome& a, const Outcome& b, double tolerance) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, tolerance) << i;
  for (const auto& [name, t] : a.weights)
    EXPECT_TRUE(at::allclose(t, b.weights.at(name), 0, tolerance))
        << name << ", apart by " << (t - b.weights.at(name)).abs().max();
}

Job job_of(std::int64_t per_batch, std::int64_t accumulation, int ranks = 1) {
  Job job;
  job.trainer.num_train_epochs = 2;
  job.trainer.gradient_accumulation_steps = accumulation;
  job.trainer.lr_scheduler_type = "constant";
  job.trainer.max_grad_norm = 0.5;
  job.per_batch = per_batch;
  job.ranks = ranks;
  return job;
}

TEST(Trainer, AccumulatedBatchesTrainAsOneLargeBatch) {
  const auto whole = train(job_of(6, 1));
  EXPECT_EQ(whole.steps.size(), 4u);
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    expect_close(train(job_of(2, 3, ranks)), whole, 1e-6);
    expect_close(train(job_of(1, 6, ranks)), whole, 1e-6);  // ranks without rows take part
  }
}

TEST(Trainer, SumsOverRanksAfterEachBatchOrAfterTheLast) {
  const auto whole = train(job_of(6, 1));
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    auto job = job_of(2, 3, ranks);
    const auto last = train(job);
    job.trainer.sync_each_batch = true;
    const auto each = train(job);
    expect_close(each, whole, 1e-6);
    EXPECT_EQ(each.reductions, 3 * whole.reductions);
    EXPECT_EQ(last.reductions, (ranks == 1 ? 3 : 1) * whole.reductions) << "one rank has nobody to wait for";
  }
}

TEST(Trainer, TheLastStepOfAnEpochTakesTheBatchesThatAreLeft) {
  auto job = job_of(5, 2);  // batches of 5, 5 and 2 rows
  const auto outcome = train(job);
  ASSERT_EQ(outcome.steps.size(), 4u);
  const std::vector<std::int64_t> rows = {10, 2, 10, 2};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(outcome.steps[i].rows, rows[i]);
    EXPECT_EQ(outcome.steps[i].ends_epoch, i % 2 == 1);
    EXPECT_DOUBLE_EQ(outcome.steps[i].epoch, static_cast<double>(i / 2) + (i % 2 == 0 ? 2.0 / 3 : 1.0));
  }
  EXPECT_EQ(outcome.calls, 6);
  ASSERT_EQ(outcome.epochs.size(), 2u);
  EXPECT_DOUBLE_EQ(outcome.epochs[0].mean_loss, (outcome.steps[0].loss + outcome.steps[1].loss) / 2);
}

TEST(Trainer, PartsOfEpochsAndMaxStepsEndWhereTheySay) {
  auto job = job_of(4, 1);  // 3 steps an epoch
  job.trainer.num_train_epochs = 1.5;
  EXPECT_EQ(train(job).steps.size(), 5u);  // ceil, as transformers
  TrainerOptions part;
  part.num_train_epochs = 1.1;
  EXPECT_EQ(total_steps(part, 110), 122);  // 121.00000000000001, and there, too
  part.num_train_epochs = 1e300;
  EXPECT_GT(total_steps(part, 110), 1'000'000'000'000);
  job.trainer.max_steps = 4;
  const auto outcome = train(job);
  EXPECT_EQ(outcome.steps.size(), 4u);
  EXPECT_TRUE(outcome.steps.back().ends_epoch);
  EXPECT_EQ(outcome.epochs.size(), 2u);
}

TEST(Trainer, StepsMayBeMoreThanAnyRunTakes) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  TrainerOptions options;
  options.gradient_accumulation_steps = 3;
  EXPECT_EQ(steps_per_epoch(options, kMost), kMost / 3 + 1);
  EXPECT_EQ(steps_per_epoch(options, 7), 3);
  EXPECT_EQ(steps_per_epoch(options, 6), 2);
  EXPECT_GT(CheckpointOptions::every(1e19, 8), 1'000'000'000'000);
  EXPECT_EQ(CheckpointOptions::every(0.25, 8), 2);
}

TEST(Trainer, GradientsAreClippedAndTheirNormIsReportedBefore) {
  auto job = job_of(4, 1);
  job.trainer.max_steps = 1;
  job.trainer.learning_rate = 1e-2;
  const double norm = train(job).steps[0].grad_norm;
  EXPECT_GT(norm, 0);
  job.trainer.max_grad_norm = norm / 10;
  EXPECT_NEAR(train(job).steps[0].grad_norm, norm, 1e-12);
  job.trainer.max_grad_norm = 0;
  EXPECT_EQ(train(job).steps[0].grad_norm, 0);
}

// As in transformers' Trainer: the step counts, parameters stay as they are, and the rate of the next step is this
// one's.
TEST(Trainer, AnOverflowChangesNothingAndTheScheduleWaits) {
  auto job = job_of(4, 1);
  job.trainer.max_grad_norm = 0;
  job.trainer.scale_loss = true;
  job.trainer.lr_scheduler_type = "linear";
  job.trainer.max_steps = 4;
  const auto calm = train(job);
  EXPECT_EQ(calm.skipped, 0);
  job.spoilt = {{1, 1e36}};  // finite, but not when it is scaled
  const auto spoilt = train(job);
  ASSERT_EQ(spoilt.steps.size(), 4u);
  EXPECT_EQ(spoilt.skipped, 1);
  EXPECT_DOUBLE_EQ(spoilt.loss_scale, calm.loss_scale / 2);
  EXPECT_EQ(spoilt.steps[0].overflow, "");
  EXPECT_SAYS(spoilt.steps[1].overflow, "the gradient, scaled by 65536 for float16, has ");
  EXPECT_SAYS(spoilt.steps[1].overflow, " in 'stem.weight' (rank 0); the scale is 32768 now");
  EXPECT_DOUBLE_EQ(spoilt.steps[2].learning_rate, spoilt.steps[1].learning_rate);
  EXPECT_DOUBLE_EQ(spoilt.steps[3].learning_rate, calm.steps[2].learning_rate);
  for (const auto& [name, t] : spoilt.weights) EXPECT_TRUE(at::isfinite(t).all().item<bool>()) << name;

  auto two_steps = job;  // the second of them overflows
  two_steps.trainer.max_steps = 2;
  auto one_step = job;
  one_step.trainer.max_steps = 1;
  two_steps.trainer.lr_scheduler_type = one_step.trainer.lr_scheduler_type = "constant";
  const auto after = train(two_steps).weights;
  for (const auto& [name, t] : train(one_step).weights) EXPECT_TRUE(at::equal(t, after.at(name))) << name;
}

Job on_a_device(fsdp::StateOn state_on) {
  Job job;
  job.trainer.gradient_accumulation_steps = 2;
  job.trainer.max_grad_norm = 0.1;
  job.fsdp.device = test::fake_device();
  job.fsdp.state_on = state_on;
  return job;
}

TEST(Trainer, TrainsOnADeviceAsOnTheCpu) {
  auto job = on_a_device(fsdp::StateOn::kHost);
  job.fsdp.device = at::kCPU;
  const auto here = train(job);
  for (const auto state_on : {fsdp::StateOn::kHost, fsdp::StateOn::kDevice}) {
    const auto there = train(on_a_device(state_on));
    ASSERT_EQ(there.steps.size(), here.steps.size());
    for (std::size_t i = 0; i < here.steps.size(); ++i) {
      EXPECT_NEAR(there.steps[i].loss, here.steps[i].loss, 1e-5);
      EXPECT_NEAR(there.steps[i].grad_norm, here.steps[i].grad_norm, 1e-5);
    }
    for (const auto& [name, t] : here.weights) EXPECT_TRUE(at::allclose(t, there.weights.at(name), 1e-5, 1e-5)) << name;
  }
}

TEST(Trainer, TheOptimizersWorkGoesOnBesideTheNextForwardOfADevice) {
  std::thread::id rank;
  std::set<std::thread::id> updating;
  auto job = on_a_device(fsdp::StateOn::kHost);
  job.prepare = [&](SmallNet&) { rank = std::this_thread::get_id(); };
  job.watch = [&](std::size_t, std::size_t) { updating.insert(std::this_thread::get_id()); };
  train(job);
  EXPECT_EQ(updating.size(), 1u);
  EXPECT_FALSE(updating.contains(rank));
}

TEST(Trainer, WhatFailsInThatWorkEndsTheRun) {
  auto job = on_a_device(fsdp::StateOn::kHost);
  int updates = 0;
  job.watch = [&](std::size_t i, std::size_t) {
    if (i == 0 && ++updates == 2) throw Error("no memory for the moments");
  };
  EXPECT_SAYS(error_of(job), "no memory for the moments");
  updates = 0;
  job.trainer.max_steps = 2;  // no forward follows
  EXPECT_SAYS(error_of(job), "no memory for the moments");
}

TEST(Trainer, AForwardThatFailsMeanwhileEndsTheRunWhenTheWorkIsDone) {
  auto job = on_a_device(fsdp::StateOn::kHost);
  std::atomic<bool> at_the_last = false, ended = false;
  job.watch = [&](std::size_t i, std::size_t count) {
    if (i + 1 < count) return;
    at_the_last = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ended = true;
  };
  job.prepare = [&](SmallNet& model) {
    model.blocks[0]->ran = [&, forwards = 0]() mutable {
      if (++forwards < 3) return;  // those of the first step
      while (!at_the_last) std::this_thread::yield();
      throw Error("a failing forward");
    };
  };
  EXPECT_SAYS(error_of(job), "a failing forward");
  EXPECT_TRUE(ended);
}

TEST(Trainer, GradientsThatLeaveADeviceBesideItsWorkAreSummedAfterEachBatch) {
  const auto whole = train(job_of(6, 1));
  auto job = job_of(2, 3, 2);
  job.fsdp.device = test::fake_device();
  const auto each = train(job);
  expect_close(each, whole, 1e-6);
  EXPECT_EQ(each.reductions, 3 * whole.reductions);
  job.fsdp.strategy = fsdp::ShardingStrategy::kNoShard;  // ranks share nothing: whole gradients would be summed
  EXPECT_EQ(train(job).reductions, whole.reductions);
  job.fsdp.strategy = fsdp::ShardingStrategy::kFullShard;
  job.fsdp.gather = fsdp::GatherForm::kCopy;  // as ranks on several hosts
  EXPECT_EQ(train(job).reductions, whole.reductions);
}

TEST(Trainer, ADeviceWithoutMemorySaysWhereAndWhatHelps) {
  const auto said = [](std::int64_t room, fsdp::StateOn state_on) -> std::string {
    test::limit_fake_devices(room);
    std::string what = "nothing";
    try {
      train(on_a_device(state_on));
    } catch (const std::bad_alloc& e) {
      what = e.what();
    }
    test::limit_fake_devices(0);
    return what;
  };
  EXPECT_SAYS(said(100, fsdp::StateOn::kDevice), "sharding the model onto 'fake:0': fake out of memory");
  const auto text = said(1600, fsdp::StateOn::kHost);
  EXPECT_SAYS(text, "step 1, forward of unit 'block");
  EXPECT_SAYS(text, "Tried to allocate");
  EXPECT_SAYS(text, "--gradient_checkpointing true");
}

TEST(Trainer, NamesTheStepAndTheRankOfALossThatIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    auto job = job_of(4, 1);
    job.spoilt = {{2, bad}};
    const auto what = error_of(job);
    EXPECT_SAYS(what, "step 3");
    EXPECT_SAYS(what, "rank 0");
  }
}

TEST(Trainer, AGradientThatIsNotFiniteEndsTheRunBeforeItSpoilsAnything) {
  for (const int ranks : {1, 2}) {
    for (const double clip : {0.0, 0.5}) {
      auto job = job_of(4, 1, ranks);
      job.trainer.max_grad_norm = clip;
      job.spoilt_gradients = {1};
      const auto what = error_of(job);
      EXPECT_SAYS(what, "step 2: the gradient has NaN in '");
      EXPECT_SAYS(what, "weight' (rank ");
      EXPECT_SAYS(what, "--nan_policy skip");
    }
  }
}

// The step counts, and whatever comes after it is as if it had been left out of the data.
TEST(Trainer, NanPolicySkipLeavesTheStepOut) {
  for (const int ranks : {1, 2}) {
    auto job = job_of(4, 1, ranks);
    job.trainer.nan_policy = NanPolicy::kSkip;
    job.trainer.lr_scheduler_type = "linear";
    job.trainer.max_steps = 3;
    auto shorter = job;
    shorter.trainer.max_steps = 2;
    shorter.trainer.lr_scheduler_type = job.trainer.lr_scheduler_type = "constant";
    const auto without = train(shorter);
    for (const bool in_loss : {true, false}) {
      auto spoilt = job;
      if (in_loss)
        spoilt.spoilt = {{2, std::nan("")}};
      else
        spoilt.spoilt_gradients = {2};
      const auto outcome = train(spoilt);
      ASSERT_EQ(outcome.steps.size(), 3u);
      EXPECT_EQ(outcome.skipped, 1);
      EXPECT_EQ(outcome.steps[1].skipped, "");
      EXPECT_SAYS(outcome.steps[2].skipped, in_loss ? "the loss is not finite on rank 0" : "the gradient has NaN in '");
      EXPECT_TRUE(std::isfinite(outcome.epochs.back().mean_loss));
      for (const auto& [name, t] : without.weights) EXPECT_TRUE(at::equal(t, outcome.weights.at(name))) << name;
    }
  }
}

TEST(Trainer, AfterASkippedStepTheNextIsTakenAsIfNothingHadBeen) {
  auto job = job_of(4, 1);
  job.trainer.nan_policy = NanPolicy::kSkip;
  job.trainer.num_train_epochs = 1;
  job.spoilt_gradients = {0};
  const auto spoilt = train(job);
  EXPECT_GT(spoilt.steps[1].grad_norm, 0);
  EXPECT_NE(spoilt.steps[2].loss, spoilt.steps[1].loss);
  // Adam's first step moves weights by about the rate wherever the gradient is not tiny.
  auto one = job;
  one.trainer.max_steps = 1;
  auto two = job;
  two.trainer.max_steps = 2;
  const auto before = train(one).weights, after = train(two).weights;
  double moved = 0;
  for (const auto& [name, t] : before) moved = std::max(moved, (t - after.at(name)).abs().max().item<double>());
  EXPECT_GT(moved, 1e-4);
}

TEST(Trainer, NanPolicySkipGivesUp) {
  auto job = job_of(1, 1);
  job.trainer.nan_policy = NanPolicy::kSkip;
  for (std::int64_t b = 1; b < 24; ++b) job.spoilt[b] = std::nan("");
  const auto what = error_of(job);
  EXPECT_SAYS(what, "step 11");
  EXPECT_SAYS(what, "10th such step in a row");
}

TEST(Trainer, AWeightThatIsNotFiniteIsNamed) {
  auto job = job_of(4, 1, 2);
  job.spoilt_weight = "block1";
  const auto what = error_of(job);
  EXPECT_SAYS(what, "step 1: the loss is not finite");
  EXPECT_SAYS(what, "there is infinity in 'block1.");
  EXPECT_SAYS(what, "' of unit 'block1' (rank ");
}

}  // namespace
}  // namespace tessera::train
