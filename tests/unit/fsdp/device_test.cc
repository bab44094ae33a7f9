// A device computes, everything else stays in host memory: the same bits as on the CPU. The device is a fake one, whose
// pointers crash who reads them as the host's.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/fake_device.h"
#include "support/fake_streams.h"
#include "support/host_kernels.h"
#include "support/on_device.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"

namespace tessera::fsdp {
namespace {

namespace fs = std::filesystem;
using test::fake_device;
using test::TempFolder;
using testing::Affine;
using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::NetOptions;
using testing::on_device;
using testing::SmallNet;

constexpr ShardingStrategy kDeviceStrategies[] = {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                                  ShardingStrategy::kNoShard};

enum class Trains { kAll, kSome };

void freeze_some(SmallNet& net) {
  for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
  net.stem->weight.set_requires_grad(false);
}

struct DeviceRun {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights, grads;
  MemoryStats memory;
};

/// Three steps of two micro-batches, clipping, AdamW.
std::vector<DeviceRun> train_here_or_there(int world, const FsdpOptions& options, bool there,
                                           Trains trains = Trains::kAll, NetOptions net_options = {}) {
  std::vector<DeviceRun> runs(static_cast<std::size_t>(world));
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    auto& run = runs[static_cast<std::size_t>(group->rank())];
    SmallNet net(net_options);
    if (trains == Trains::kSome) freeze_some(net);
    auto sharded = fully_shard(net, group, there ? on_device(options, *group) : options);
    optim::AdamW optimizer(sharded->parameters(), parameter_slices(*sharded), testing::adamw_options());
    optimizer.keep_state_in(sharded->offload_store());
    for (int step = 0; step < 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        sharded->set_requires_gradient_sync(micro == 1);
        const auto loss = loss_of(net(batch(group->rank(), 2 * step + micro)), group->rank(), step);
        EXPECT_EQ(loss.is_cpu(), !there);
        loss.backward();
        run.losses.push_back(loss.item<double>());
      }
      sharded->visit_full_grads([&](const std::string& name, const at::Tensor& t) { run.grads[name] = t.clone(); });
      run.norms.push_back(sharded->clip_grad_norm(0.05));
      optimizer.step();
      optimizer.zero_grad();
    }
    run.memory = sharded->memory();
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) { run.weights[name] = t.clone(); });
    for (const auto& view : sharded->shards()) EXPECT_TRUE(view.local.is_cpu()) << view.name;
  });
  return runs;
}

void expect_same_bits(int world, const FsdpOptions& options, Trains trains = Trains::kAll, NetOptions net = {}) {
  const auto here = train_here_or_there(world, options, false, trains, net);
  const auto there = train_here_or_there(world, options, true, trains, net);
  for (int r = 0; r < world; ++r) {
    const auto &a = here[static_cast<std::size_t>(r)], &b = there[static_cast<std::size_t>(r)];
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.norms, b.norms);
    for (const auto& [name, t] : a.grads) EXPECT_TRUE(at::equal(t, b.grads.at(name))) << "gradient of " << name;
    for (const auto& [name, t] : a.weights) EXPECT_TRUE(at::equal(t, b.weights.at(name))) << name;
    EXPECT_EQ(a.memory.peak_device_bytes, 0);
    EXPECT_GT(b.memory.peak_device_bytes, 0);
  }
  EXPECT_EQ(test::fake_device_bytes(), 0) << "all of it was given back";
}

TEST(Device, TrainsWithTheCpusBitsUnderEveryStrategyAndForm) {
  for (int world : {1, 2, 3})
    for (auto form : kForms)
      for (auto strategy : kDeviceStrategies)
        expect_same_bits(world, {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form});
}

TEST(Device, FrozenParametersLowPrecisionTiesAndHybrid) {
  for (auto form : kForms)
    for (auto strategy : kDeviceStrategies) {
      FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form};
      expect_same_bits(2, options, Trains::kSome);
      options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat};
      expect_same_bits(2, options, Trains::kSome);
      options.precision.reduce_dtype = at::kBFloat16;
      expect_same_bits(2, options, Trains::kAll, {.tied = true, .unused = true, .twice = true});
    }
  expect_same_bits(4, {.strategy = ShardingStrategy::kHybridShard, .shard_group_size = 2}, Trains::kSome);
}

TEST(Device, RecomputesActivationsAndPrefetches) {
  for (auto form : kForms)
    for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form};
      options.forward_prefetch = true;
      expect_same_bits(2, options, Trains::kSome);
      options.activation_checkpointing = same_as_wrap();
      expect_same_bits(2, options);
      expect_same_bits(2, options, Trains::kSome);
    }
}

TEST(Device, IgnoredModulesAreThereTooAndFollowTheOptimizer) {
  for (auto form : kForms)
    for (const char* pattern : {"stem", "block1", "block0\\.up|head"})
      expect_same_bits(2, {.wrap = wrap_classes({"MlpBlock"}), .gather = form, .ignored_modules = named_like(pattern)},
                       Trains::kSome);
}

TEST(Device, GoesWithAFolderThatHoldsTheRest) {
  const auto folder = fs::path(TESSERA_BINARY).parent_path() / "device_test_folder";
  fs::create_directories(folder);
  for (auto form : kForms)
    for (auto strategy : kDeviceStrategies)
      expect_same_bits(
          2,
          {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form, .offload_folder = folder.string()},
          Trains::kSome);
}

TEST(Device, CopiesMappedParametersOfTheWeightFile) {
  SmallNet original;
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (auto& p : original.named_parameters()) values.emplace_back(p.key(), p.value().detach().clone());
  for (auto strategy : kDeviceStrategies) {
    FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"})};
    options.source = io::memory_source(values);
    const auto mapped = train_here_or_there(2, options, true, Trains::kSome);
    EXPECT_GT(mapped[0].memory.mapped_bytes, 0);
    expect_same_bits(2, options, Trains::kSome);
  }
}

TEST(Device, HoldsTheRootAndTheUnitThatRunsAndOneAheadAfterTheFirstForward) {
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    // Parameters begin at multiples of 64 bytes, and so do slices.
    const auto bytes_of = [&](const std::vector<at::Tensor>& parameters) {
      std::int64_t lines = 0;
      for (const auto& p : parameters) lines += (static_cast<std::int64_t>(p.nbytes()) + 63) / 64;
      return (lines + group->size() - 1) / group->size() * group->size() * 64;
    };
    const auto root = bytes_of({net.stem->weight, net.stem->bias, net.head->weight, net.head->bias});
    const auto block = bytes_of(net.blocks[0]->parameters());
    for (const int ahead : {0, 1, 2}) {
      SmallNet copied;
      const auto sharded = fully_shard(
          copied, group, on_device({.wrap = wrap_classes({"MlpBlock"}), .max_gathers_in_flight = ahead}, *group));
      EXPECT_EQ(sharded->memory().device_bytes, 0);
      for (int step = 0; step < 2; ++step) {
        const auto loss = loss_of(copied(batch(group->rank(), step)), group->rank(), step);
        EXPECT_EQ(sharded->memory().device_bytes, root);
        EXPECT_EQ(sharded->memory().peak_device_bytes, root + (step == 0 || ahead == 0 ? block : 2 * block));
        loss.backward();
        EXPECT_EQ(sharded->memory().device_bytes, 0);
        EXPECT_EQ(sharded->memory().peak_device_bytes, root + (ahead == 0 ? block : 2 * block));
      }
    }
  });
}

TEST(Device, BuffersAndInputsAreBroughtThereAndAModelMayLiveThereAlready) {
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net, moved;
    net.stem->register_buffer("table", at::ones({2}));
    for (auto& p : moved.parameters()) p.set_data(p.detach().to(fake_device(group->rank())));
    const auto options = on_device({.sync_module_states = true}, *group);
    const auto a = fully_shard(net, group, options), b = fully_shard(moved, group, options);
    EXPECT_EQ(net.stem->named_buffers()["table"].device(), options.device);
    EXPECT_EQ(net.head->weight.device(), options.device);
    EXPECT_TRUE(at::equal(net(batch(0, 0)).detach().cpu(), moved(batch(0, 0)).detach().cpu()));
  });
}

TEST(Device, OneThatDoesNotExistIsSaidSo) {
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    for (const at::Device device : {at::Device(at::kXPU), at::Device(fake_device().type(), test::kFakeDevices)}) {
      FsdpOptions options;
      options.device = device;
      try {
        fully_shard(net, group, options);
        ADD_FAILURE() << device;
      } catch (const ConfigError& e) {
        EXPECT_NE(std::string(e.what()).find(device.str()), std::string::npos) << e.what();
      }
    }
  });
}

TEST(Device, SharedMemoryIsPinnedAsLongAsTheModelLives) {
  const test::FakeKernels kernels;
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    const auto sharded = fully_shard(net, group, on_device({.wrap = wrap_classes({"MlpBlock"})}, *group));
    EXPECT_EQ(test::registered_regions(), 2) << "of parameters, and of gradients";
  });
  EXPECT_EQ(test::registered_regions(), 0);
}

/// Copies beside computation: on streams that are late, over memory that is poisoned.
class DeviceCopies : public ::testing::Test {
 protected:
  ~DeviceCopies() override {
    EXPECT_EQ(test::FakeStreams::fault(), "");
    EXPECT_GT(test::FakeStreams::copies() - before_, 0);
  }

 private:
  std::int64_t before_ = test::FakeStreams::copies();
  const test::FakeKernels kernels_;  // without them no memory is pinned
  const test::FakeStreams streams_{7};
};

TEST_F(DeviceCopies, TrainWithTheCpusBits) {
  for (int world : {1, 2, 3})
    for (auto form : kForms)
      for (auto strategy : kDeviceStrategies)
        expect_same_bits(world, {.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form},
                         world == 2 ? Trains::kSome : Trains::kAll);
}

TEST_F(DeviceCopies, RecomputeActivationsAndTakeParametersSeveralTimes) {
  for (auto form : kForms) {
    FsdpOptions options{.wrap = wrap_classes({"MlpBlock"}), .gather = form};
    options.activation_checkpointing = same_as_wrap();
    expect_same_bits(2, options, Trains::kSome);
    options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat, .output_dtype = at::kFloat};
    expect_same_bits(2, options, Trains::kAll, {.tied = true, .unused = true, .twice = true});
    options.backward_prefetch = BackwardPrefetch::kPost;
    expect_same_bits(2, options, Trains::kSome);
  }
  expect_same_bits(4, {.strategy = ShardingStrategy::kHybridShard, .shard_group_size = 2}, Trains::kSome);
}

TEST_F(DeviceCopies, OfIgnoredModulesMappedParametersAndAFolder) {
  SmallNet original;
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (auto& p : original.named_parameters()) values.emplace_back(p.key(), p.value().detach().clone());
  const auto temp = TempFolder::on_disk("device_copies");
  for (auto form : {GatherForm::kAuto, GatherForm::kCopy}) {
    FsdpOptions options{.wrap = wrap_classes({"MlpBlock"}), .gather = form};
    options.source = io::memory_source(values);
    for (auto strategy : kDeviceStrategies) {
      options.strategy = strategy;
      expect_same_bits(2, options, Trains::kSome);
    }
    options.offload_folder = temp.path();
    expect_same_bits(2, options, Trains::kSome);
    options.offload_folder = "";
    options.ignored_modules = named_like("block0\\.up|head");
    expect_same_bits(2, options, Trains::kSome);
  }
}

TEST_F(DeviceCopies, AreOverBeforeTheMemoryThatTheyReadIsGivenBack) {
  const test::WatchedMemory watched;
  for (const bool fails : {false, true})
    comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet net;
      const auto sharded = fully_shard(net, group, on_device({.wrap = wrap_classes({"MlpBlock"})}, *group));
      const at::NoGradGuard no_grad;
      net(batch(0, 0));
      net.blocks[1]->throws = fails;
      try {
        net(batch(0, 1));  // nobody reads what comes of it
      } catch (const std::runtime_error&) {
      }
      EXPECT_GT(test::fake_device_reads(0), 0);
    });
}

TEST_F(DeviceCopies, BackwardWaitsForNoGradient) {
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    const auto sharded = fully_shard(net, group, on_device({.wrap = wrap_classes({"MlpBlock"})}, *group));
    for (int step = 0; step < 2; ++step) {
      const auto loss = loss_of(net(batch(0, step)), 0, step);
      EXPECT_GT(test::fake_device_reads(0), 0);
      const auto waits = test::fake_device_waits();
      loss.backward();
      EXPECT_EQ(test::fake_device_waits(), waits + 1) << "at the end, for copies to the device";
      EXPECT_EQ(test::fake_device_reads(0), 0) << "optimizers may write what copies read";
      sharded->zero_grad();
    }
  });
}

/// Whole gradients of the last of several steps, some of which fail half way.
std::map<std::string, at::Tensor> train_with_failures(int world, FsdpOptions options, bool there) {
  std::map<std::string, at::Tensor> grads;
  options.activation_checkpointing = same_as_wrap();  // so that a block can fail in backward
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    net.blocks[0]->up->weight.set_requires_grad(false);
    const auto sharded = fully_shard(net, group, there ? on_device(options, *group) : options);
    optim::AdamW optimizer(sharded->parameters(), parameter_slices(*sharded), testing::adamw_options());
    const auto forward = [&](int step) { return loss_of(net(batch(group->rank(), step)), group->rank(), step); };
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      if (step > 0) {
        net.blocks[1]->throws = true;
        EXPECT_THROW(forward(step), std::runtime_error);
        net.blocks[1]->throws = false;
      }
      if (step > 1) {
        const auto loss = forward(step);
        net.blocks[step % 2]->throws = true;
        EXPECT_THROW(loss.backward(), std::runtime_error);
        net.blocks[step % 2]->throws = false;
        optimizer.zero_grad();
      }
      forward(step).backward();
      optimizer.step();
    }
    sharded->visit_full_grads([&](const std::string& name, const at::Tensor& t) {
      if (group->rank() == 0) grads[name] = t.clone();
    });
    const auto loss = forward(4);
    net.blocks[0]->throws = true;
    EXPECT_THROW(loss.backward(), std::runtime_error);  // the model goes while gradients leave the device
  });
  return grads;
}

TEST_F(DeviceCopies, AFailureHalfWayLeavesTheModelUsable) {
  for (int world : {1, 2}) {
    const FsdpOptions options{.wrap = wrap_classes({"MlpBlock"}), .gather = GatherForm::kShared};
    const auto here = train_with_failures(world, options, false), there = train_with_failures(world, options, true);
    for (const auto& [name, t] : here) EXPECT_TRUE(at::equal(t, there.at(name))) << name;
  }
}

TEST(Device, WhereNoMemoryCanBePinnedCopiesAreWaitedFor) {
  const test::FakeKernels kernels;
  const test::FakeStreams streams(5);
  test::refuse_to_register(true);
  SmallNet original;
  std::vector<std::pair<std::string, at::Tensor>> values;
  for (auto& p : original.named_parameters()) values.emplace_back(p.key(), p.value().detach().clone());
  FsdpOptions options{.wrap = wrap_classes({"MlpBlock"})};
  options.source = io::memory_source(values);
  const auto copies = test::FakeStreams::copies();
  expect_same_bits(2, options, Trains::kSome);
  EXPECT_EQ(test::FakeStreams::copies(), copies);
  EXPECT_EQ(test::FakeStreams::fault(), "");
  test::refuse_to_register(false);
}

}  // namespace
}  // namespace tessera::fsdp
