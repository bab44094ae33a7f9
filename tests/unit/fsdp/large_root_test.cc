// Large parameters of the root: reduced by themselves, their gradients written in place.
#include <gtest/gtest.h>

#include "nn/ops/linear_cross_entropy.h"
#include "nn/ops/lookup.h"
#include "support/compare.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"

namespace tessera::fsdp {
namespace {

using testing::fixed_values;

constexpr std::int64_t kRows = 4100, kDim = 260;  // more than a million elements

/// x + (x table^T) table / many: reads the root's table from inside a block.
class TableReader final : public nn::Layer {
 public:
  explicit TableReader(at::Tensor table) : table_(std::move(table)) {}
  std::string class_name() const override { return "TableReader"; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return x + at::linear(x, table_).matmul(table_) * 1e-3; }

 private:
  at::Tensor table_;
};

struct Table final : nn::Layer {
  explicit Table(double seed) { weight = register_parameter("weight", fixed_values({kRows, kDim}, seed, 0.1)); }
  std::string class_name() const override { return "Table"; }
  at::Tensor weight;

 protected:
  at::Tensor forward_impl(at::Tensor ids) override { return nn::lookup(weight, ids); }
};

struct LargeNetOptions {
  bool tied = false;
  bool nested = false;  // the table is read twice in nested backward passes
};

/// ids -> loss
class LargeNet final : public nn::Layer {
 public:
  explicit LargeNet(LargeNetOptions options) : options_(options) {
    table_ = register_module("table", std::make_shared<Table>(1));
    for (int i = 0; i < 4; ++i)
      blocks_.push_back(
          register_module("block" + std::to_string(i), std::make_shared<testing::MlpBlock>(kDim, 11, 3.0 + 2 * i)));
    norm_ = register_parameter("norm", at::ones({kDim}));
    if (!options.tied) head_ = register_module("head", std::make_shared<Table>(2));
    reader_ = std::make_shared<TableReader>(table_->weight);
  }
  std::string class_name() const override { return "LargeNet"; }
  void set_nested(bool nested) { options_.nested = nested; }

 protected:
  at::Tensor forward_impl(at::Tensor ids) override {
    auto x = (*table_)(ids);
    for (auto& block : blocks_) x = (*block)(x);
    if (options_.nested) x = testing::recomputed(*reader_, testing::recomputed(*reader_, x));
    return nn::linear_cross_entropy(x * norm_, (head_ ? head_ : table_)->weight, (ids * 7) % kRows, {});
  }

 private:
  LargeNetOptions options_;
  std::shared_ptr<Table> table_, head_;
  std::vector<std::shared_ptr<testing::MlpBlock>> blocks_;
  at::Tensor norm_;
  std::shared_ptr<TableReader> reader_;
};

at::Tensor ids_of(int rank, int step) {
  return (at::arange(12, at::kLong) * (31 + rank) + 1000 * step) % kRows;
}

using Gradients = std::map<std::string, at::Tensor>;

/// What is trained by: (model, batch of a rank and step) -> backward passes of one step.
using Step = std::function<void(LargeNet&, int rank, int step)>;

void one_backward(LargeNet& net, int rank, int step) {
  net(ids_of(rank, step)).backward();
}
void two_losses(LargeNet& net, int rank, int step) {
  auto first = net(ids_of(rank, step)), second = net(ids_of(rank, step + 50));
  (second + first).backward();
}
void dropped_forward(LargeNet& net, int rank, int step) {
  net(ids_of(rank, step + 70));
  net(ids_of(rank, step)).backward();
}

Gradients alone(int world, LargeNetOptions options, int step, const Step& run) {
  LargeNet net(options);
  for (int rank = 0; rank < world; ++rank) run(net, rank, step);
  Gradients result;
  for (auto& p : net.named_parameters()) result[p.key()] = p.value().grad() / world;
  return result;
}

std::int64_t expect_same_gradients(int world, LargeNetOptions options, FsdpOptions how, const Step& run,
                                   double tolerance = 1e-6) {
  std::int64_t buffers = 0;
  std::vector<Gradients> expected;
  for (int step = 0; step < 2; ++step) expected.push_back(alone(world, options, step, run));
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    LargeNet net(options);
    auto sharded = fully_shard(net, group, how);
    for (int step = 0; step < 2; ++step) {
      sharded->zero_grad();
      run(net, group->rank(), step);
      int seen = 0;
      sharded->visit_full_grads([&](const std::string& name, const at::Tensor& grad) {
        ++seen;
        if (how.precision.param_dtype && name.find("block") == 0) return;  // small sums of values that cancel
        const auto& want = expected[static_cast<std::size_t>(step)].at(name);
        test::expect_close(grad, want, tolerance, name + ", step " + std::to_string(step));
      });
      EXPECT_EQ(seen, static_cast<int>(expected[static_cast<std::size_t>(step)].size()));
    }
    if (group->rank() == 0) buffers = sharded->memory().gradient_buffer_bytes;
  });
  return buffers;
}

FsdpOptions by_blocks(GatherForm form) {
  return {.wrap = wrap_classes({"MlpBlock"}), .gather = form};
}

TEST(LargeRootParameters, GradientsAreThoseOfOneProcess) {
  for (const auto form : testing::kForms)
    for (const bool tied : {false, true})
      for (const int world : {2, 3}) expect_same_gradients(world, {.tied = tied}, by_blocks(form), one_backward);
}

TEST(LargeRootParameters, GradientsAreTheSameBesideStateOnADisk) {
  const auto disk = test::TempFolder::on_disk("large_root");
  for (const auto form : testing::kForms)
    for (const auto strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
      for (const bool tied : {false, true}) {
        auto how = by_blocks(form);
        how.strategy = strategy;
        how.offload_folder = disk.path();
        expect_same_gradients(2, {.tied = tied}, how, one_backward);
      }
}

TEST(LargeRootParameters, UntiedOnesTakeTurnsInOneSlot) {
  const auto bytes = expect_same_gradients(2, {}, by_blocks(GatherForm::kShared), one_backward);
  EXPECT_GE(bytes, kRows * kDim * 4);
  EXPECT_LT(bytes, kRows * kDim * 4 + 100'000);
}

TEST(LargeRootParameters, TwoForwardsShareOneBackward) {
  for (const auto form : testing::kForms)
    for (const bool tied : {false, true}) expect_same_gradients(2, {.tied = tied}, by_blocks(form), two_losses);
}

TEST(LargeRootParameters, AForwardWithoutBackwardLeavesNothing) {
  for (const auto form : testing::kForms)
    for (const bool tied : {false, true}) expect_same_gradients(2, {.tied = tied}, by_blocks(form), dropped_forward);
}

TEST(LargeRootParameters, NestedBackwardPassesAreAllCounted) {
  for (const auto form : testing::kForms) {
    expect_same_gradients(2, {.nested = true}, by_blocks(form), one_backward);
    expect_same_gradients(2, {.tied = true, .nested = true}, by_blocks(form), one_backward);
  }
}

TEST(LargeRootParameters, OneRankMayHaveNestedPassesThatOthersLack) {
  const auto run = [](LargeNet& net, int rank, int step) {
    net.set_nested(rank == 1);
    one_backward(net, rank, step);
  };
  expect_same_gradients(2, {}, by_blocks(GatherForm::kShared), run);
}

TEST(LargeRootParameters, WithoutUnitsEachIsReducedByItself) {
  for (const auto form : testing::kForms)
    expect_same_gradients(2, {}, {.wrap = wrap_none(), .gather = form}, one_backward);
}

using BackwardOf = std::function<void(at::Tensor loss, bool last)>;

using Accumulate = std::function<void(LargeNet&, int rank, const BackwardOf&)>;

/// After each of two such steps.
std::vector<Gradients> accumulated(bool tied, const FsdpOptions& how, const Accumulate& run) {
  std::vector<Gradients> result(2);
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    LargeNet net({.tied = tied});
    auto sharded = fully_shard(net, group, how);
    for (auto& gradients : result) {
      sharded->zero_grad();
      sharded->set_requires_gradient_sync(true);
      run(net, group->rank(), [&](const at::Tensor& loss, bool last) {
        sharded->set_requires_gradient_sync(last);
        loss.backward();
      });
      sharded->visit_full_grads([&](const std::string& name, const at::Tensor& grad) {
        if (group->rank() == 0) gradients[name] = grad.clone();
      });
    }
  });
  return result;
}

FsdpOptions in_bfloat16(GatherForm form) {
  auto how = by_blocks(form);
  how.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  return how;
}

/// Gradients of a step of several backward passes: those of one process in float32, those of the copy form, where all
/// is summed in float32, in bfloat16.
void expect_same_accumulation(const Accumulate& run) {
  for (const bool tied : {false, true}) {
    const auto expected = alone(2, {.tied = tied}, 0, [&](LargeNet& net, int rank, int) {
      run(net, rank, [](const at::Tensor& loss, bool) { loss.backward(); });
    });
    for (const auto& step : accumulated(tied, by_blocks(GatherForm::kShared), run))
      for (const auto& [name, want] : expected) test::expect_close(step.at(name), want, 1e-6, name);
    const auto copied = accumulated(tied, in_bfloat16(GatherForm::kCopy), run),
               shared = accumulated(tied, in_bfloat16(GatherForm::kShared), run);
    for (std::size_t step = 0; step < copied.size(); ++step)
      for (const auto& [name, want] : copied[step]) {
        const auto& got = shared[step].at(name);
        if (tied && name == "table.weight")
          test::expect_close(got, want, 0.01, name);
        else
          EXPECT_TRUE(at::equal(got, want)) << name << ", step " << step;
      }
  }
}

TEST(LargeRootParameters, AccumulatedOverBatches) {
  expect_same_accumulation([](LargeNet& net, int rank, const BackwardOf& backward) {
    for (int part = 0; part < 3; ++part) backward(net(ids_of(rank, 10 * part)), part == 2);
  });
}

TEST(LargeRootParameters, SumsThatAreStillWantedLeaveTheSlotThatIsWrittenAgain) {
  expect_same_accumulation([](LargeNet& net, int rank, const BackwardOf& backward) {
    for (int part = 0; part < 3; ++part) backward(net(ids_of(rank, 10 * part)), true);
  });
}

TEST(LargeRootParameters, TheSumOfATiedOneNeedsNoMemoryBesideItsSlot) {
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    LargeNet net({.tied = true});
    auto sharded = fully_shard(net, group, by_blocks(GatherForm::kShared));
    one_backward(net, group->rank(), 0);
    const auto memory = sharded->memory();
    EXPECT_GE(memory.gradient_buffer_bytes, kRows * kDim * 4);
    EXPECT_LT(memory.gradient_shard_bytes, 100'000);
  });
}

// The first forward prepares its gradient where the second's arrives before.
TEST(LargeRootParameters, WhatAForwardPreparedSurvivesAnotherBackward) {
  expect_same_accumulation([](LargeNet& net, int rank, const BackwardOf& backward) {
    auto first = net(ids_of(rank, 0)), second = net(ids_of(rank, 50));
    backward(second, false);
    backward(first, true);
  });
}

std::vector<MixedPrecision> precisions_of_16_bits() {
  return {{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat},
          {.param_dtype = at::kBFloat16, .reduce_dtype = at::kBFloat16},
          {.param_dtype = at::kHalf, .reduce_dtype = at::kFloat},
          {.reduce_dtype = at::kBFloat16}};  // slots narrower than what is computed
}

TEST(LargeRootParameters, In16BitsGradientsAreCloseToThoseOfOneProcess) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard})
    for (const auto& precision : precisions_of_16_bits()) {
      auto how = by_blocks(GatherForm::kShared);
      how.precision = precision;
      how.strategy = strategy;
      expect_same_gradients(2, {.tied = true}, how, two_losses, 0.03);
    }
  for (const bool tied : {false, true})
    expect_same_gradients(2, {.tied = tied, .nested = true}, in_bfloat16(GatherForm::kShared), one_backward, 0.03);
}

// What the gradients of each rank are, as autograd makes them of a model in bfloat16, is summed over ranks in float32.
TEST(LargeRootParameters, InBfloat16EachRankContributesWhatAutogradWouldSum) {
  for (const bool tied : {false, true}) {
    Gradients expected;
    for (int rank = 0; rank < 2; ++rank) {
      LargeNet net({.tied = tied});
      net.to(at::kBFloat16);
      one_backward(net, rank, 0);
      for (auto& p : net.named_parameters()) {
        const auto grad = p.value().grad().to(at::kFloat);
        auto& sum = expected[p.key()];
        sum = sum.defined() ? sum + grad : grad;
      }
    }
    comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
      LargeNet net({.tied = tied});
      auto sharded = fully_shard(net, group, in_bfloat16(GatherForm::kShared));
      one_backward(net, group->rank(), 0);
      sharded->visit_full_grads([&](const std::string& name, const at::Tensor& grad) {
        EXPECT_TRUE(at::equal(grad, expected.at(name) / 2)) << name << ", tied: " << tied;
      });
    });
  }
}

TEST(LargeRootParameters, InBfloat16SlotsAreHalfAsLarge) {
  const auto how = in_bfloat16(GatherForm::kShared);
  for (const bool tied : {false, true}) {
    const auto bytes = expect_same_gradients(2, {.tied = tied}, how, one_backward, 0.03);
    EXPECT_GE(bytes, kRows * kDim * 2);
    EXPECT_LT(bytes, kRows * kDim * 2 + 100'000);
  }
}

TEST(LargeRootParameters, InBfloat16TheSumOfATiedOneStaysInItsSlotOnlyWhereThatIsLess) {
  for (const int world : {1, 3})
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      LargeNet net({.tied = true});
      auto sharded = fully_shard(net, group, in_bfloat16(GatherForm::kShared));
      one_backward(net, group->rank(), 0);
      const auto memory = sharded->memory();
      const auto held = memory.gradient_buffer_bytes + memory.gradient_shard_bytes;
      const auto expected = world == 1 ? kRows * kDim * 4 : kRows * kDim * 2 + kRows * kDim * 4 / 3;
      EXPECT_GE(held, expected);
      EXPECT_LT(held, expected + 200'000);
    });
}

}  // namespace
}  // namespace tessera::fsdp
