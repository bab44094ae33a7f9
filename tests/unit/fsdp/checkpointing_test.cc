// Activation checkpointing: the same bits, the same number of gathers, less memory.
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "support/fake_device.h"
#include "support/train_small_net.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"
#include "tessera/nn/dropout.h"

namespace tessera::fsdp {
namespace {

using testing::Affine;
using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::NetOptions;
using testing::SmallNet;
using testing::train_alone;
using testing::train_sharded;
using testing::TrainOptions;
using testing::worst_difference;

/// Bytes that this thread allocates: now, and at most.
class Allocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0, peak = 0;
};

template <class Action>
std::int64_t peak_of(Action action) {
  auto allocations = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
  action();
  return allocations->peak;
}

TEST(ActivationCheckpointing, GivesTheSameBitsInTwoGathersAStep) {
  const TrainOptions how{.steps = 3};
  for (auto form : kForms)
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form};
      const auto plain = train_sharded(2, {}, options, how);
      for (const auto& policy : {same_as_wrap(), wrap_classes({"MlpBlock"}), every_nth(2, wrap_classes({"MlpBlock"})),
                                 every_nth(2, same_as_wrap()), wrap_classes({"MlpBlock", "Affine"})}) {
        options.activation_checkpointing = policy;
        const auto recomputed = train_sharded(2, {}, options, how);
        EXPECT_EQ(worst_difference(plain[0], recomputed[0]), 0.0);
        EXPECT_EQ(plain[0].losses, recomputed[0].losses);
        EXPECT_EQ(plain[0].norms, recomputed[0].norms);
        EXPECT_EQ(plain[0].stats.gathers, recomputed[0].stats.gathers);
        EXPECT_EQ(plain[0].stats.reductions, recomputed[0].stats.reductions);
        EXPECT_EQ(recomputed[0].memory.gathered_bytes, 0);
      }
    }
}

TEST(ActivationCheckpointing, UnitsInsideARecomputedUnitAreGatheredTwiceToo) {
  const TrainOptions how{.steps = 2};
  FsdpOptions options{.wrap = wrap_classes({"MlpBlock", "Affine"}), .gather = GatherForm::kCopy};
  const auto plain = train_sharded(2, {}, options, how);
  options.activation_checkpointing = wrap_classes({"MlpBlock"});
  const auto recomputed = train_sharded(2, {}, options, how);
  EXPECT_EQ(worst_difference(plain[0], recomputed[0]), 0.0);
  EXPECT_EQ(plain[0].stats.gathers, recomputed[0].stats.gathers);
}

/// Blocks with dropout, of which a forward keeps much more than its output.
struct Wide final : nn::Layer {
  explicit Wide(double seed) {
    up = register_module("up", std::make_shared<Affine>(16, 512, seed));
    down = register_module("down", std::make_shared<Affine>(512, 16, seed + 1));
    dropout = register_module("dropout", std::make_shared<nn::Dropout>(0.3));
  }
  std::string class_name() const override { return "Wide"; }
  at::Tensor forward_impl(at::Tensor x) override { return x + (*down)((*dropout)(at::tanh((*up)(x)))); }
  std::shared_ptr<Affine> up, down;
  std::shared_ptr<nn::Dropout> dropout;
};

struct Tower final : nn::Layer {
  explicit Tower(int n) {
    for (int i = 0; i < n; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Wide>(2.0 * i)));
  }
  std::string class_name() const override { return "Tower"; }
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& b : blocks) x = (*b)(x);
    return x;
  }
  std::vector<std::shared_ptr<Wide>> blocks;
};

TEST(ActivationCheckpointing, PlainModulesDropTheirActivationsAndDrawTheSameMasks) {
  const auto x = testing::fixed_values({256, 16}, 7, 1);
  const auto run = [&](bool recompute, std::int64_t& peak) {
    Tower tower(6);
    nn::set_checkpointing(
        tower, [&](const std::string&, const nn::HookedModule& m) { return recompute && m.class_name() == "Wide"; });
    tensor::manual_seed(3);
    std::vector<at::Tensor> results;
    peak = peak_of([&] {
      const auto y = tower(x);
      results.push_back(y.detach());
      y.square().sum().backward();
    });
    for (const auto& p : tower.parameters()) results.push_back(p.grad());
    results.push_back(at::scalar_tensor(static_cast<double>(tensor::random_state().position)));
    return results;
  };
  std::int64_t kept = 0, recomputed = 0;
  const auto a = run(false, kept), b = run(true, recomputed);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  // Six blocks keep three tensors of 256 x 512 floats each, recomputation one block's at a time.
  EXPECT_LT(recomputed, kept * 2 / 5) << kept;
}

TEST(ActivationCheckpointing, TrainsWhatLiesAboveFrozenInputsOnly) {
  Tower tower(3);
  for (auto& p : tower.parameters()) p.set_requires_grad(false);
  tower.blocks[1]->down->weight.set_requires_grad(true);
  tower.eval();
  const auto x = testing::fixed_values({8, 16}, 7, 1);
  tower(x).sum().backward();
  const auto want = tower.blocks[1]->down->weight.grad().clone();
  tower.blocks[1]->down->weight.mutable_grad().reset();
  nn::set_checkpointing(tower, [](const std::string&, const nn::HookedModule& m) { return m.class_name() == "Wide"; });
  tower(x).sum().backward();
  EXPECT_TRUE(at::equal(tower.blocks[1]->down->weight.grad(), want));
}

TEST(ActivationCheckpointing, BlocksThatTrainNothingAreNotRecomputed) {
  Tower tower(2);
  for (auto& p : tower.parameters()) p.set_requires_grad(false);
  nn::set_checkpointing(tower, [](const std::string&, const nn::HookedModule&) { return true; });
  EXPECT_FALSE(tower(testing::fixed_values({8, 16}, 7, 1)).requires_grad());
}

// The nested backward would add to the parameters' gradients, or leave second derivatives out.
TEST(ActivationCheckpointing, GradientsOfChosenTensorsAndOfGradientsAreErrors) {
  for (bool create_graph : {false, true}) {
    testing::SmallNet net;
    const auto sharded =
        fsdp::fully_shard(net, comm::make_solo(),
                          {.wrap = fsdp::wrap_classes({"MlpBlock"}), .activation_checkpointing = fsdp::same_as_wrap()});
    const auto x = testing::batch(0, 0).set_requires_grad(true);
    const auto loss = testing::loss_of(net(x), 0, 0);
    if (create_graph)
      EXPECT_THROW(loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true), Error);
    else
      EXPECT_THROW(torch::autograd::grad({loss}, {x}), Error);
    testing::loss_of(net(x), 0, 0).backward();
    for (const auto& p : sharded->parameters()) EXPECT_TRUE(p.grad().defined());
  }
}

TEST(ActivationCheckpointing, NamesTheClassThatMatchesNothing) {
  comm::run_threads(1, [](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    EXPECT_THROW(fully_shard(net, group, {.activation_checkpointing = wrap_classes({"Block"})}), ConfigError);
    EXPECT_THROW(fully_shard(net, group, {.activation_checkpointing = same_as_wrap()}), ConfigError);
  });
}

struct Several {
  at::Tensor a, b;
  std::vector<at::Tensor> more;
  int note = 0;
};
void collect_tensors(Several& s, std::vector<at::Tensor*>& out) {
  out.insert(out.end(), {&s.a, &s.b});
  for (auto& t : s.more) out.push_back(&t);
}

/// Uses structs: an undefined member, one that passes through, integers, an output that nothing requires grad of.
struct Mixed final : nn::Block<Several, Several> {
  Mixed() { w = register_parameter("w", testing::fixed_values({4}, 1, 1)); }
  std::string class_name() const override { return "Mixed"; }
  Several forward_impl(Several in) override {
    Several out;
    out.a = in.a * w;
    out.more = {in.more.at(0), in.more.at(0).to(at::kLong), at::ones({4})};
    out.note = in.note + 1;
    return out;
  }
  at::Tensor w;
};

TEST(ActivationCheckpointing, PassesStructsOfTensorsThrough) {
  Mixed block;
  block.set_checkpointing(true);
  const auto a = testing::fixed_values({4}, 2, 1).set_requires_grad(true);
  auto out = block({.a = a, .b = {}, .more = {at::full({4}, 2.5)}, .note = 6});
  EXPECT_EQ(out.note, 7);
  EXPECT_FALSE(out.b.defined());
  EXPECT_EQ(out.more.at(1).scalar_type(), at::kLong);
  (out.a.sum() + (out.more[0] * 3 + out.more[2]).sum()).backward();
  EXPECT_TRUE(at::equal(a.grad(), block.w.detach()));
  EXPECT_TRUE(at::equal(block.w.grad(), a.detach()));
}

// Which device's generators it may draw from, in both runs.
TEST(Checkpointing, ABlockRunsBothTimesWhileTheDeviceOfItsInputsIsCurrent) {
  std::vector<int> devices;
  const auto run = [&](std::vector<at::Tensor> inputs) {
    devices.push_back(test::fake_current_device());
    return std::vector{inputs[0] * 2};
  };
  const auto x = at::ones({2}).to(test::fake_device(3)).set_requires_grad(true);
  nn::checkpoint(run, {x})[0].sum().backward();
  EXPECT_EQ(devices, (std::vector{3, 3}));
  EXPECT_EQ(test::fake_current_device(), 0);
}

}  // namespace
}  // namespace tessera::fsdp
