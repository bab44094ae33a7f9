// A run that is stopped, saved and loaded goes on as if nothing had happened, at any number of ranks.
#include "checkpoint/training_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/fake_device.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/tensor/random.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::SmallNet;

class TrainingState : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "training_state_" + std::to_string(getpid());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static void steps(SmallNet& model, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer, int first,
                    int last) {
    for (int step = first; step < last; ++step) {  // the same batch on every rank: any world size gives the same mean
      testing::loss_of(model(testing::batch(0, step)), 0, step).backward();
      sharded.clip_grad_norm(0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
  }

  std::map<std::string, at::Tensor> run(int world, int first, int last, bool load, bool save) {
    std::map<std::string, at::Tensor> weights;
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet model(testing::NetOptions{});
      auto sharded = fsdp::fully_shard(model, group, {.wrap = fsdp::wrap_classes({"MlpBlock"})});
      optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), testing::adamw_options());
      if (load) checkpoint::load_training_state(*sharded, &optimizer, folder_);
      EXPECT_EQ(optimizer.steps(), load ? first : 0);
      steps(model, *sharded, optimizer, first, last);
      if (save) checkpoint::save_training_state(*sharded, optimizer, folder_);
      sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
        if (group->rank() == 0) weights[name] = t.detach().clone();
      });
    });
    return weights;
  }

  /// How a run is sharded; a world of `world` threads.
  struct Sharding {
    const char* name;
    int world;
    fsdp::ShardingStrategy strategy = fsdp::ShardingStrategy::kFullShard;
    int group_size = 0;
    bool offloaded = false, low_precision = false, on_device = false, stays_there = false;
  };

  std::map<std::string, at::Tensor> run(const Sharding& how, int first, int last, bool load, bool save) {
    std::map<std::string, at::Tensor> weights;
    const auto disk = test::TempFolder::on_disk("training_state");
    comm::run_threads(how.world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet model(testing::NetOptions{});
      fsdp::FsdpOptions options{.strategy = how.strategy,
                                .shard_group_size = how.group_size,
                                .wrap = fsdp::wrap_classes({"MlpBlock"}),
                                .offload_folder = how.offloaded ? disk.path() : ""};
      if (how.on_device) options.device = test::fake_device(group->rank());
      if (how.stays_there) options.state_on = fsdp::StateOn::kDevice;
      if (how.low_precision) options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
      auto sharded = fsdp::fully_shard(model, group, options);
      optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), testing::adamw_options());
      optimizer.keep_state_in(sharded->offload_store());
      if (load) checkpoint::load_training_state(*sharded, &optimizer, folder_);
      steps(model, *sharded, optimizer, first, last);
      if (save) checkpoint::save_training_state(*sharded, optimizer, folder_);
      sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
        if (group->rank() == 0) weights[name] = t.detach().clone();
      });
    });
    return weights;
  }

  std::string folder_;
};

double worst(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  double result = 0;
  for (const auto& [name, t] : a) result = std::max(result, (t - b.at(name)).abs().max().item<double>());
  return result;
}

TEST_F(TrainingState, TheSameWorldSizeContinuesBitEqual) {
  const auto whole = run(3, 0, 6, false, false);
  run(3, 0, 3, false, true);
  EXPECT_TRUE(checkpoint::has_training_state(folder_));
  EXPECT_EQ(worst(run(3, 3, 6, true, false), whole), 0.0);
}

TEST_F(TrainingState, AnotherWorldSizeContinuesWithinRounding) {
  const auto whole = run(3, 0, 6, false, false);
  run(3, 0, 3, false, true);
  for (const int world : {1, 2, 4}) EXPECT_LT(worst(run(world, 3, 6, true, false), whole), 1e-5) << world;
}

TEST_F(TrainingState, EveryStrategyContinuesBitEqualAndFromEveryOther) {
  using fsdp::ShardingStrategy;
  const std::vector<Sharding> all = {{"full, 3 ranks", 3},
                                     {"hybrid, 2 groups of 2", 4, ShardingStrategy::kHybridShard, 2},
                                     {"hybrid zero 2, 2 groups of 1", 2, ShardingStrategy::kHybridShardZero2, 1},
                                     {"replicated, 2 ranks", 2, ShardingStrategy::kNoShard},
                                     {"gradients and optimizer, 2 ranks", 2, ShardingStrategy::kShardGradOp},
                                     {"on a disk, 2 ranks", 2, ShardingStrategy::kFullShard, 0, true},
                                     {"on a disk, hybrid", 4, ShardingStrategy::kHybridShard, 2, true},
                                     {"a device, 2 ranks", 2, ShardingStrategy::kFullShard, 0, false, false, true},
                                     {"a device, replicated", 2, ShardingStrategy::kNoShard, 0, false, false, true},
                                     {"all on a device", 1, ShardingStrategy::kFullShard, 0, false, false, true, true}};
  for (const auto& from : all) {
    fs::remove_all(folder_);
    const auto whole = run(from, 0, 6, false, false);
    run(from, 0, 3, false, true);
    for (const auto& to : all) {
      const double difference = worst(run(to, 3, 6, true, false), whole);
      if (&to == &from)
        EXPECT_EQ(difference, 0.0) << from.name;
      else
        EXPECT_LT(difference, 1e-5) << from.name << " to " << to.name;
    }
  }
}

TEST_F(TrainingState, MastersOfALowPrecisionRunKeepTheirBits) {
  const Sharding in_memory{"bf16", 2, fsdp::ShardingStrategy::kFullShard, 0, false, true};
  const Sharding on_disk{"bf16 on a disk", 2, fsdp::ShardingStrategy::kFullShard, 0, true, true};
  const auto whole = run(in_memory, 0, 6, false, false);
  run(in_memory, 0, 3, false, true);
  EXPECT_EQ(worst(run(in_memory, 3, 6, true, false), whole), 0.0);
  EXPECT_EQ(worst(run(on_disk, 3, 6, true, false), whole), 0.0);
}

// As the shortest program makes its optimizer: over parameters() alone, which it knows by their numbers.
TEST_F(TrainingState, AnOptimizerWithoutSlicesGoesOnAtAnyNumberOfRanks) {
  const auto go = [&](int world, int first, int last, bool save) {
    at::Tensor weight;
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet model(testing::NetOptions{});
      auto sharded = fsdp::fully_shard(model, group, {.wrap = fsdp::wrap_classes({"MlpBlock"})});
      optim::AdamW optimizer(sharded->parameters(), testing::adamw_options());
      if (first > 0) checkpoint::load_training_state(*sharded, &optimizer, folder_);
      steps(model, *sharded, optimizer, first, last);
      if (save) checkpoint::save_training_state(*sharded, optimizer, folder_);
      sharded->visit_full([&](const std::string&, const at::Tensor& t) {
        if (group->rank() == 0 && t.dim() == 2) weight = t.detach().clone();
      });
    });
    return weight;
  };
  const auto whole = go(2, 0, 6, false);
  go(2, 0, 3, true);
  EXPECT_TRUE(at::equal(go(2, 3, 6, false), whole));
  EXPECT_LT((go(3, 3, 6, false) - whole).abs().max().item<double>(), 1e-6);
}

TEST_F(TrainingState, DrawsFromLibtorchsGeneratorsGoOn) {
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet model(testing::NetOptions{});
    auto sharded = fsdp::fully_shard(model, group, {});
    optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), testing::adamw_options());
    manual_seed(4);
    (void)at::randn({5});
    checkpoint::save_training_state(*sharded, optimizer, folder_);
    const auto expected = at::randn({5});
    manual_seed(8);  // as a run that begins
    checkpoint::load_training_state(*sharded, &optimizer, folder_);
    EXPECT_TRUE(at::equal(at::randn({5}), expected));
    manual_seed(8);
    const auto own = at::randn({5});
    manual_seed(8);
    checkpoint::load_training_state(*sharded, nullptr, folder_);  // parameters only
    EXPECT_TRUE(at::equal(at::randn({5}), own));
  });
}

TEST_F(TrainingState, EveryRankKeepsItsOwnGenerators) {
  run({"replicated, 2 ranks", 2, fsdp::ShardingStrategy::kNoShard}, 0, 1, false, true);
  for (const int rank : {0, 1}) {
    const auto stored = io::open_safetensors(folder_ + "/rank_0000" + std::to_string(rank) + "_of_00002.safetensors");
    EXPECT_NE(stored->find("generator/cpu." + std::to_string(rank) + "@0"), nullptr);
    EXPECT_EQ(stored->tensors().size() == 1, rank == 1);  // of replicas one writes the parameters
  }
}

TEST_F(TrainingState, ATornFolderIsRecognised) {
  EXPECT_FALSE(checkpoint::has_training_state(folder_));
  run(2, 0, 1, false, true);
  const std::string file = folder_ + "/rank_00001_of_00002.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_FALSE(checkpoint::has_training_state(folder_));
}

TEST_F(TrainingState, AMissingPartIsNamed) {
  run(2, 0, 1, false, true);
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    testing::Affine other(5, 3, 1.0);
    auto sharded = fsdp::fully_shard(other, group, {});
    try {
      checkpoint::load_training_state(*sharded, nullptr, folder_);
      FAIL() << "expected an error";
    } catch (const CheckpointError& e) {
      EXPECT_NE(std::string(e.what()).find("'weight'"), std::string::npos) << e.what();
    }
  });
}

}  // namespace
}  // namespace tessera
