// Going on from a checkpoint whose files are compared while they are read.
#include "checkpoint/restore.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_saver.h"
#include "checkpoint/pretrained.h"
#include "checkpoint/training_state.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::SmallNet;
using Weights = std::map<std::string, at::Tensor>;

class Restore : public ::testing::Test {
 protected:
  template <class Body>
  static void on_ranks(int world, const Body& body, fsdp::ShardingStrategy strategy = {}) {
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet model(testing::NetOptions{});
      auto sharded = fsdp::fully_shard(model, group, {.strategy = strategy, .wrap = fsdp::wrap_classes({"MlpBlock"})});
      optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), testing::adamw_options());
      body(model, *sharded, optimizer);
    });
  }
  static Weights weights(fsdp::FullyShardedDataParallel& sharded) {
    Weights out;
    sharded.visit_full([&](const std::string& name, const at::Tensor& t) { out[name] = t.detach().clone(); });
    return out;
  }
  static void step(SmallNet& model, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer, int number) {
    testing::loss_of(model(testing::batch(0, number)), 0, number).backward();
    sharded.clip_grad_norm(0.5);
    optimizer.step();
    optimizer.zero_grad();
  }

  /// checkpoint-1 and checkpoint-2 of a run; what their weights were.
  std::vector<Weights> write(int world, fsdp::ShardingStrategy strategy = {}) {
    std::vector<Weights> out(2);
    on_ranks(
        world,
        [&](SmallNet& model, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
          checkpoint::CheckpointSaver saver(sharded.group(), folder_, 0, checkpoint::SaveQueue::Mode::kNow);
          for (int number = 0; number < 2; ++number) {
            step(model, sharded, optimizer, number);
            const std::string to = saver.begin(number + 1, "");
            checkpoint::push_training_state(sharded, optimizer, checkpoint::training_state_folder(to), saver.queue());
            checkpoint::save_pretrained(sharded, {.files = {.model = to, .tokenizer = {}}}, to, &saver.queue());
            saver.end();
            auto now = weights(sharded);
            if (sharded.group().rank() == 0) out[static_cast<std::size_t>(number)] = std::move(now);
          }
        },
        strategy);
    return out;
  }
  static void expect_equal(const Weights& a, const Weights& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, t] : a) EXPECT_TRUE(t.equal(b.at(name))) << name;
  }
  static void flip(const std::string& file, std::size_t bit) {
    std::string bytes = read_file(file);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    std::ofstream(file, std::ios::binary) << bytes;
  }

  const test::TempFolder temporary_{"restore"};
  const std::string& folder_ = temporary_.path();
};

TEST_F(Restore, AnyNumberOfRanksAndStrategyReadsWhatAnyHasWritten) {
  using fsdp::ShardingStrategy;
  for (const auto& [writers, from] : {std::pair{3, ShardingStrategy::kFullShard}, {2, ShardingStrategy::kNoShard}}) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    const auto expected = write(writers, from);
    for (const int world : {1, 2, 3, 4}) {
      for (const auto to : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
        on_ranks(
            world,
            [&](SmallNet&, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
              EXPECT_EQ(checkpoint::restore_checkpoint(sharded, &optimizer, folder_ + "/checkpoint-2"), "");
              EXPECT_EQ(optimizer.steps(), 2);
              expect_equal(weights(sharded), expected[1]);
            },
            to);
      }
    }
  }
}

// Of every file, in its first and last bytes (where headers are) and at places between.
TEST_F(Restore, AFlippedBitAnywhereIsFoundOnEveryRankAndTheOneBeforeIsTaken) {
  const auto expected = write(2);
  const std::string newest = folder_ + "/checkpoint-2";
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(newest))
    if (entry.is_regular_file() && entry.path().filename() != "manifest.json")
      files.push_back(fs::relative(entry.path(), newest).string());
  ASSERT_GE(files.size(), 4u);
  for (const int world : {2, 3}) {
    on_ranks(world, [&](SmallNet&, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
      const auto restore = [&](const std::string& from) {
        return checkpoint::restore_checkpoint(sharded, &optimizer, from);
      };
      auto& group = sharded.group();
      for (const auto& file : files) {
        const std::string path = newest + "/" + file;
        const std::size_t bits = fs::file_size(path) * 8;
        group.barrier();
        for (std::size_t bit = 3; bit < bits; bit += bits / 12 + 1) {
          if (group.rank() == 0) flip(path, bit);
          group.barrier();
          std::vector<std::string> skipped;
          const auto last = checkpoint::last_checkpoint(folder_, restore, skipped);
          ASSERT_TRUE(last.has_value()) << file << " bit " << bit;
          EXPECT_EQ(last->step, 1) << file << " bit " << bit;
          ASSERT_EQ(skipped.size(), 1u);
          EXPECT_NE(skipped[0].find("'" + file + "' has the checksum"), std::string::npos) << skipped[0];
          EXPECT_EQ(optimizer.steps(), 1);
          expect_equal(weights(sharded), expected[0]);
          group.barrier();
          if (group.rank() == 0) flip(path, bit);
          group.barrier();
        }
      }
      EXPECT_EQ(restore(newest), "");
      expect_equal(weights(sharded), expected[1]);
    });
  }
}

TEST_F(Restore, OnlyTheParametersWhereNoOptimizerIsGiven) {
  const auto expected = write(2);
  on_ranks(2, [&](SmallNet&, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
    EXPECT_EQ(checkpoint::restore_checkpoint(sharded, nullptr, folder_ + "/checkpoint-2"), "");
    EXPECT_EQ(optimizer.steps(), 0);
    expect_equal(weights(sharded), expected[1]);
  });
}

TEST_F(Restore, AFolderWithoutTrainingStateIsNoCheckpointToGoOnFrom) {
  write(2);
  const std::string bare = folder_ + "/checkpoint-1";
  fs::remove_all(bare + "/training_state");
  checkpoint::write_manifest(bare, 1, 2, {});
  on_ranks(2, [&](SmallNet&, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer) {
    EXPECT_EQ(checkpoint::restore_checkpoint(sharded, &optimizer, bare),
              "it holds no training state (written with --save_only_model)");
  });
}

TEST_F(Restore, OneOfAnotherModelIsAnErrorOnEveryRank) {
  write(2);
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    testing::Affine other(5, 3, 1.0);
    auto sharded = fsdp::fully_shard(other, group, {});
    try {
      checkpoint::restore_checkpoint(*sharded, nullptr, folder_ + "/checkpoint-2");
      FAIL() << "expected an error";
    } catch (const CheckpointError& e) {
      EXPECT_NE(std::string(e.what()).find("belongs to another model"), std::string::npos) << e.what();
    }
  });
}

}  // namespace
}  // namespace tessera
