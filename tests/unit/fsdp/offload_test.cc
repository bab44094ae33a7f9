// Parameters and optimizer state in memory-mapped files: the same bits as in memory.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/mapped_file.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tensor/file_pages.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"
#include "tessera/tensor/allocator.h"

namespace tessera::fsdp {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using testing::batch;
using testing::kForms;
using testing::loss_of;
using testing::SmallNet;

struct OffloadRun {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> norms;
  MemoryStats memory;
};

/// Two micro-batches a step, clipping, AdamW, some parameters frozen.
std::vector<OffloadRun> train_accumulating(int world, FsdpOptions options, bool frozen) {
  std::vector<OffloadRun> runs(static_cast<std::size_t>(world));
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    auto& run = runs[static_cast<std::size_t>(group->rank())];
    SmallNet net;
    if (frozen) {
      for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
      net.stem->weight.set_requires_grad(false);
    }
    auto sharded = fully_shard(net, group, options);
    optim::AdamW optimizer(sharded->parameters(), parameter_slices(*sharded), testing::adamw_options());
    optimizer.keep_state_in(sharded->offload_store());
    for (int step = 0; step < 4; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        sharded->set_requires_gradient_sync(micro == 1);
        loss_of(net(batch(group->rank(), 2 * step + micro)), group->rank(), step).backward();
      }
      run.norms.push_back(sharded->clip_grad_norm(0.05));
      optimizer.step();
      optimizer.zero_grad();
    }
    run.memory = sharded->memory();
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) { run.weights[name] = t.clone(); });
  });
  return runs;
}

TEST(Offload, GivesTheSameBitsWithAccumulationClippingAndFrozenParameters) {
  const auto temp = TempFolder::on_disk("offload_bits");
  const auto& folder = temp.path();
  for (int world : {1, 2, 3})
    for (auto form : kForms)
      for (auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard})
        for (bool low : {false, true}) {
          FsdpOptions options{.strategy = strategy, .wrap = wrap_classes({"MlpBlock"}), .gather = form};
          if (low) options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
          const auto memory = train_accumulating(world, options, true);
          options.offload_folder = folder;
          const auto disk = train_accumulating(world, options, true);
          for (int r = 0; r < world; ++r) {
            const auto &a = memory[static_cast<std::size_t>(r)], &b = disk[static_cast<std::size_t>(r)];
            EXPECT_EQ(a.norms, b.norms);
            for (const auto& [name, t] : a.weights) EXPECT_TRUE(at::equal(t, b.weights.at(name))) << name;
          }
          EXPECT_TRUE(fs::is_empty(folder)) << "files have no names";
        }
}

TEST(Offload, HoldsParametersAndTwoMomentsInFiles) {
  const auto temp = TempFolder::on_disk("offload_bytes");
  const auto& folder = temp.path();
  for (auto form : kForms) {
    const auto runs =
        train_accumulating(2, {.wrap = wrap_classes({"MlpBlock"}), .gather = form, .offload_folder = folder}, false);
    const auto shard = runs[0].memory.shard_bytes;
    // The shared region is one file for both ranks, which both map whole.
    const auto parameters = form == GatherForm::kCopy ? shard : 2 * shard + 64;
    EXPECT_EQ(runs[0].memory.offloaded_bytes, parameters + 2 * shard);
  }
}

TEST(Offload, GradientsTakeWhatStepsKeepAnywayAndNoMoreOfIt) {
  if (!tensor::use_step_allocator()) GTEST_SKIP() << "no address range";
  const auto temp = TempFolder::on_disk("offload_gradients");
  // By gradients, in what steps keep, where that is in use otherwise, or free.
  const auto held = [&](const std::string& folder, bool free) {
    std::int64_t bytes = 0;
    comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
      constexpr std::int64_t kDim = 1024, kBlock = 1 << 20;
      testing::MlpBlock net(kDim, kDim, 1.0);
      auto sharded = fully_shard(net, group, {.wrap = wrap_none(), .offload_folder = folder});
      std::vector<at::Tensor> others;
      while (!free && tensor::has_free_block(kBlock)) others.push_back(at::empty({kBlock}, at::kByte));
      net(at::ones({2, kDim})).sum().backward();
      const auto before = tensor::allocator_stats();
      sharded->zero_grad();
      bytes = before.used_bytes - tensor::allocator_stats().used_bytes;
    });
    return bytes;
  };
  EXPECT_GT(held("", /*free=*/false), 8'000'000);
  EXPECT_EQ(held(temp.path(), /*free=*/false), 0);
  {
    const auto activations = at::empty({64 << 20}, at::kByte);
  }
  EXPECT_GT(held(temp.path(), /*free=*/true), 8'000'000);
}

TEST(Offload, LeavesMappedWeightsInTheirFile) {
  const auto temp = TempFolder::on_disk("offload_mapped");
  const auto& folder = temp.path();
  SmallNet values;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto& p : values.named_parameters()) tensors.emplace_back(p.key(), p.value().detach());
  io::write_safetensors(folder + "/model.safetensors", tensors);
  const std::shared_ptr<const io::TensorSource> file = io::open_safetensors(folder + "/model.safetensors");
  const std::shared_ptr<const io::TensorSource> memory = io::memory_source(tensors);
  std::vector<std::vector<OffloadRun>> runs;
  for (const auto& source : {file, memory})
    for (const auto& offload : {std::string(), folder})
      runs.push_back(train_accumulating(
          2, {.wrap = wrap_classes({"MlpBlock"}), .source = source, .offload_folder = offload}, true));
  for (const auto& run : runs) {
    EXPECT_GT(run[0].memory.mapped_bytes, 0);
    for (const auto& [name, t] : runs[0][1].weights) EXPECT_TRUE(at::equal(t, run[1].weights.at(name))) << name;
  }
}

/// A rank's steps over mapped frozen weights; the file's fate comes after the first. What each rank throws, or its last
/// loss.
std::vector<std::string> train_over_a_file(const std::string& folder, const std::string& offload,
                                           const std::function<void(const std::string& file)>& fate) {
  const auto path = folder + "/model.safetensors";
  SmallNet values;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (auto& p : values.named_parameters()) tensors.emplace_back(p.key(), p.value().detach());
  io::write_safetensors(path, tensors);
  std::vector<std::string> results(2);
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    auto& result = results[static_cast<std::size_t>(group->rank())];
    SmallNet net;
    for (auto& p : net.blocks[1]->parameters()) p.set_requires_grad(false);
    auto sharded = fully_shard(
        net, group,
        {.wrap = wrap_classes({"MlpBlock"}), .source = io::open_safetensors(path), .offload_folder = offload});
    try {
      for (int step = 0; step < 3; ++step) {
        auto loss = loss_of(net(batch(group->rank(), step)), group->rank(), step);
        loss.backward();
        sharded->zero_grad();
        result = std::to_string(loss.item<double>());
        group->barrier();
        if (step == 0 && group->rank() == 0) fate(path);
        group->barrier();
      }
    } catch (const DataError& e) {
      result = e.what();
    }
  });
  return results;
}

TEST(Offload, AFileThatIsCutDuringTheRunIsAnErrorOnEveryRank) {
  const auto temp = TempFolder::on_disk("offload_cut");
  for (const auto& offload : {std::string(), temp.path()})
    for (const auto& result :
         train_over_a_file(temp.path(), offload, [](const auto& file) { fs::resize_file(file, 0); })) {
      EXPECT_NE(result.find(temp.path() + "/model.safetensors: "), std::string::npos) << result;
      EXPECT_NE(result.find(offload.empty() ? "cannot be read at byte" : "was written to during the run"),
                std::string::npos)
          << result;
    }
}

TEST(Offload, AFolderThatIsReplacedDuringTheRunChangesNothing) {
  const auto temp = TempFolder::on_disk("offload_replaced");
  const auto expected = train_over_a_file(temp.path(), temp.path(), [](const auto&) {});
  EXPECT_EQ(expected[0].find("model"), std::string::npos) << expected[0];
  const auto replaced = train_over_a_file(temp.path(), temp.path(), [](const std::string& file) {
    fs::rename(file, file + ".old");
    std::ofstream(file) << "other weights";
  });
  EXPECT_EQ(replaced, expected);
}

/// x W, which says first that it runs.
class WatchedBlock final : public nn::Layer {
 public:
  explicit WatchedBlock(std::function<void()> runs) : runs_(std::move(runs)) {
    weight = register_parameter("weight", at::full({1024, 1024}, 1e-3));
    weight.set_requires_grad(false);
  }
  std::string class_name() const override { return "WatchedBlock"; }
  at::Tensor weight;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    runs_();
    return x.matmul(weight);
  }

 private:
  std::function<void()> runs_;
};

class WatchedNet final : public nn::Layer {
 public:
  explicit WatchedNet(const std::function<void(int block)>& runs) {
    first = register_parameter("first", at::ones({1024}));
    for (int i = 0; i < 4; ++i)
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<WatchedBlock>([runs, i] { runs(i); })));
  }
  std::string class_name() const override { return "WatchedNet"; }
  at::Tensor first;
  std::vector<std::shared_ptr<WatchedBlock>> blocks;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    x = x * first;
    for (auto& block : blocks) x = (*block)(x);
    return x;
  }
};

TEST(Offload, TheNextUnitIsOnItsWayFromTheFirstForwardOn) {
  const auto temp = TempFolder::on_disk("offload_ahead");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& p : WatchedNet([](int) {}).named_parameters()) tensors.emplace_back(p.key(), p.value().detach());
  io::write_safetensors(temp.path() + "/model.safetensors", tensors);
  const std::shared_ptr<const io::TensorSource> source = io::open_safetensors(temp.path() + "/model.safetensors");
  const auto weight_of = [&](int block) {
    return at::from_blob(source->map("block" + std::to_string(block) + ".weight")->data, {1 << 20}, at::kFloat);
  };
  const auto comes = [&](int block) {  // within some seconds, while its predecessor runs
    for (int i = 0; i < 500; ++i) {
      if (test::resident_bytes(weight_of(block)) > 4'000'000) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    std::vector<int> seen;
    WatchedNet net([&](int block) {
      seen.push_back(block);
      EXPECT_TRUE(block == 3 || comes(block + 1)) << "after block " << block;
      EXPECT_TRUE(block < 2 || test::resident_bytes(weight_of(block - 2)) <= 2 << 20) << "is spent";
    });
    auto sharded = fully_shard(
        net, group, {.wrap = wrap_classes({"WatchedBlock"}), .source = source, .offload_folder = temp.path()});
    for (int step = 0; step < 2; ++step) net(at::ones({1, 1024})).sum().backward();
    EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
  });
}

TEST(Offload, OptimizersWithOtherStatesKeepTheirBits) {
  const auto temp = TempFolder::on_disk("offload_optimizers");
  const auto& folder = temp.path();
  for (const std::string name : {"adamw_torch", "lion_32bit", "adagrad", "sgd", "adafactor"}) {
    std::vector<at::Tensor> results;
    for (const auto& offload : {std::string(), folder}) {
      comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
        SmallNet net;
        auto sharded = fully_shard(net, group, {.offload_folder = offload});
        auto optimizer = optim::make_optimizer(
            name, {.lr = 1e-2, .optim_args = name == "adagrad" ? "initial_accumulator_value=0.5" : ""},
            sharded->parameters(), parameter_slices(*sharded), group);
        optimizer->keep_state_in(sharded->offload_store());
        for (int step = 0; step < 3; ++step) {
          loss_of(net(batch(group->rank(), step)), group->rank(), step).backward();
          optimizer->step();
          optimizer->zero_grad();
        }
        sharded->visit_full([&](const std::string& parameter, const at::Tensor& t) {
          if (group->rank() == 0 && parameter == "block1.up.weight") results.push_back(t.clone());
        });
      });
    }
    EXPECT_TRUE(at::equal(results.at(0), results.at(1))) << name;
  }
}

TEST(DiskStore, RefusesFoldersThatSaveNothing) {
  EXPECT_THROW(tensor::DiskStore("/nowhere/at/all"), Error);
  EXPECT_THROW(tensor::DiskStore("/dev/shm"), Error);
  const auto temp = TempFolder::on_disk("offload_full");
  tensor::DiskStore offload(temp.path());
  try {
    offload.allocate(std::int64_t{1} << 58, at::kByte);
    FAIL() << "no disk is that large";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("cannot reserve 288230376151711744 bytes"), std::string::npos) << e.what();
  }
  EXPECT_EQ(offload.held_bytes(), 0);
}

TEST(DiskStore, ValuesSurviveWithoutMemory) {
  const auto temp = TempFolder::on_disk("offload_values");
  tensor::DiskStore offload(temp.path());
  auto t = offload.allocate(100'000, at::kFloat);
  EXPECT_EQ(offload.held_bytes(), 400'000);
  t.copy_(at::arange(100'000));
  for (const auto& part : {t, t.narrow(0, 1000, 50'000), t.narrow(0, 3, 5)}) offload.evict(part);
  const auto elsewhere = at::ones({10'000});
  offload.evict(elsewhere);
  EXPECT_TRUE(at::equal(elsewhere, at::ones({10'000})));
  offload.fetch(t);
  EXPECT_TRUE(at::equal(t, at::arange(100'000).to(at::kFloat)));
  EXPECT_TRUE(tensor::FilePages({elsewhere}).empty());
  t = at::Tensor();
  EXPECT_EQ(offload.held_bytes(), 0);
}

}  // namespace
}  // namespace tessera::fsdp
