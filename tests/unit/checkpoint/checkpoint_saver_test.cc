// Saves that run beside training, that fail, and that meet another run.
#include "checkpoint/checkpoint_saver.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/pretrained.h"
#include "checkpoint/restore.h"
#include "checkpoint/run_lock.h"
#include "checkpoint/training_state.h"
#include "support/fake_device.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointSaver;
using checkpoint::SaveQueue;
using testing::SmallNet;

class Saves : public ::testing::Test {
 protected:
  const test::TempFolder temporary_{"saves"};
  const std::string& folder_ = temporary_.path();
};

class Saver : public ::testing::TestWithParam<SaveQueue::Mode> {
 protected:
  void save(CheckpointSaver& saver, fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer,
            std::int64_t step) const {
    const std::string folder = saver.begin(step, "");
    saver.queue().allow_copies(copies_, copies_);
    checkpoint::push_training_state(model, optimizer, checkpoint::training_state_folder(folder), saver.queue());
    checkpoint::save_pretrained(model, {.files = {.model = folder, .tokenizer = {}}}, folder, &saver.queue());
    saver.end();
  }
  static void step(SmallNet& model, fsdp::FullyShardedDataParallel& sharded, optim::Optimizer& optimizer, int number,
                   CheckpointSaver& saver) {
    testing::loss_of(model(testing::batch(0, number)), 0, number).backward();
    sharded.clip_grad_norm(0.5);
    saver.before_update();
    optimizer.step();
    optimizer.zero_grad();
  }
  template <class Body>
  void on_ranks(int world, const Body& body, fsdp::StateOn state_on = fsdp::StateOn::kHost) {
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet model(testing::NetOptions{});
      fsdp::FsdpOptions options{.wrap = fsdp::wrap_classes({"MlpBlock"}), .state_on = state_on};
      if (state_on == fsdp::StateOn::kDevice) options.device = test::fake_device();
      auto sharded = fsdp::fully_shard(model, group, options);
      optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), testing::adamw_options());
      body(*group, model, *sharded, optimizer);
    });
  }

  /// A save at step 1 holds what was then, though training goes on.
  void holds_what_was(int world, fsdp::StateOn state_on);

  std::int64_t copies_ = std::numeric_limits<std::int64_t>::max();
  const test::TempFolder temporary_{"checkpoint_saver"};
  const std::string& folder_ = temporary_.path();
};

void Saver::holds_what_was(int world, fsdp::StateOn state_on) {
  const auto body = [&](comm::Communicator& group, SmallNet& model, fsdp::FullyShardedDataParallel& sharded,
                        optim::Optimizer& optimizer) {
    std::map<std::string, at::Tensor> then;
    CheckpointSaver saver(group, folder_, 0, GetParam());
    step(model, sharded, optimizer, 0, saver);
    sharded.visit_full([&](const std::string& name, const at::Tensor& t) { then[name] = t.detach().clone(); });
    save(saver, sharded, optimizer, 1);
    for (int i = 1; i < 4; ++i) {
      step(model, sharded, optimizer, i, saver);
      saver.poll();
    }
    saver.finish();
    EXPECT_EQ(checkpoint::restore_checkpoint(sharded, &optimizer, folder_ + "/checkpoint-1"), "");
    EXPECT_EQ(optimizer.steps(), 1);
    const auto file = io::open_safetensors(folder_ + "/checkpoint-1/model.safetensors");
    sharded.visit_full([&](const std::string& name, const at::Tensor& t) {
      EXPECT_TRUE(t.equal(then.at(name))) << name;
      EXPECT_TRUE(io::read_tensor(*file, name).equal(then.at(name))) << name;
    });
  };
  on_ranks(world, body, state_on);
}

TEST_P(Saver, HoldsWhatTheModelWasWhenTheSaveBegan) {
  holds_what_was(2, fsdp::StateOn::kHost);
}

TEST_P(Saver, HoldsItWithoutCopies) {
  copies_ = 0;
  holds_what_was(2, fsdp::StateOn::kHost);
}

TEST_P(Saver, HoldsItWithFewCopies) {
  copies_ = 200;
  holds_what_was(2, fsdp::StateOn::kHost);
}

TEST_P(Saver, HoldsWhatWasOnADeviceWhenTheSaveBegan) {
  holds_what_was(1, fsdp::StateOn::kDevice);
}

TEST(Snapshots, ATensorWhereAFreedOneLayIsCopiedAnew) {
  SaveQueue queue(SaveQueue::Mode::kBackground);
  queue.hold();
  std::vector<float> memory(1000, 1.F);
  const auto make = [&] { return at::from_blob(memory.data(), {1000}, at::TensorOptions().dtype(at::kFloat)); };
  auto first = make();
  const auto of_first = queue.snapshot(first);
  EXPECT_EQ(queue.snapshot(first), of_first);  // one copy of what is asked for twice
  queue.wait_copied();
  first.reset();
  std::fill(memory.begin(), memory.end(), 2.F);
  const auto of_second = queue.snapshot(make());
  queue.wait_copied();
  EXPECT_EQ((*of_first)[0].item<float>(), 1.F);
  EXPECT_EQ((*of_second)[0].item<float>(), 2.F);
  queue.release();
}

TEST_F(Saves, CopyWhereTheOneBeforeHeldTheUpdateForLonger) {
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    CheckpointSaver saver(*group, folder_, 0, SaveQueue::Mode::kBackground);
    const auto tensor = at::ones({4});
    const auto copies = [&](std::int64_t step, int writes_for_ms, bool updates) {
      saver.begin(step, "");
      const auto read = saver.queue().snapshot(tensor);
      saver.queue().push([=] { std::this_thread::sleep_for(std::chrono::milliseconds(writes_for_ms)); });
      saver.end();
      if (updates) saver.before_update();
      saver.finish();
      return read->data_ptr() != tensor.data_ptr();
    };
    EXPECT_FALSE(copies(1, 300, /*updates=*/true));
    EXPECT_TRUE(copies(2, 300, /*updates=*/true));   // would have held it, too
    EXPECT_TRUE(copies(3, 0, /*updates=*/false));    // written before the update
    EXPECT_FALSE(copies(4, 20, /*updates=*/false));  // training ended
    EXPECT_FALSE(copies(5, 300, /*updates=*/true));
    saver.begin(6, "", /*room=*/15);
    EXPECT_EQ(saver.queue().snapshot(tensor)->data_ptr(), tensor.data_ptr());
    saver.end();
  });
}

TEST_P(Saver, AFullDiskIsAnErrorOnEveryRankAndTheCheckpointBeforeStays) {
  struct Limit {  // files cannot grow beyond this
    explicit Limit(rlim_t bytes) {
      std::signal(SIGXFSZ, SIG_IGN);
      ::getrlimit(RLIMIT_FSIZE, &before);
      rlimit now{bytes, before.rlim_max};
      ::setrlimit(RLIMIT_FSIZE, &now);
    }
    ~Limit() { ::setrlimit(RLIMIT_FSIZE, &before); }
    rlimit before{};
  };
  std::atomic<int> errors{0};
  on_ranks(2, [&](comm::Communicator& group, SmallNet&, fsdp::FullyShardedDataParallel& sharded,
                  optim::Optimizer& optimizer) {
    CheckpointSaver saver(group, folder_, 1, GetParam());
    save(saver, sharded, optimizer, 1);
    saver.finish();
    group.barrier();
    auto full = group.rank() == 0 ? std::make_unique<Limit>(1000) : nullptr;
    group.barrier();
    try {
      save(saver, sharded, optimizer, 2);
      saver.finish();
    } catch (const CheckpointError& e) {
      ++errors;
      EXPECT_NE(std::string(e.what()).find("checkpoint-2 was not written"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("File too large"), std::string::npos) << e.what();
    }
    group.barrier();
    full.reset();
    group.barrier();
    std::vector<std::string> skipped;
    const auto restore = [&](const std::string& from) {
      return checkpoint::restore_checkpoint(sharded, &optimizer, from);
    };
    const auto last = checkpoint::last_checkpoint(folder_, restore, skipped);
    ASSERT_TRUE(last.has_value());
    EXPECT_EQ(last->step, 1);
    EXPECT_TRUE(skipped.empty());
    group.barrier();
    save(saver, sharded, optimizer, 3);  // there is room again
    saver.finish();
    EXPECT_EQ(checkpoint::list_checkpoints(folder_).back().step, 3);
  });
  EXPECT_EQ(errors, 2);
}

INSTANTIATE_TEST_SUITE_P(Modes, Saver, ::testing::Values(SaveQueue::Mode::kNow, SaveQueue::Mode::kBackground),
                         [](const auto& info) {
                           return info.param == SaveQueue::Mode::kNow ? std::string("Now") : std::string("Background");
                         });

using ATornSave = Saver;

TEST_F(ATornSave, IsLeftOutWithAMessage) {
  on_ranks(2, [&](comm::Communicator& group, SmallNet&, fsdp::FullyShardedDataParallel& sharded,
                  optim::Optimizer& optimizer) {
    CheckpointSaver saver(group, folder_, 0, SaveQueue::Mode::kNow);
    for (const int step : {1, 2, 3}) save(saver, sharded, optimizer, step);
    group.barrier();
    if (group.rank() == 0) {
      fs::create_directories(checkpoint::partial_folder(folder_, 4));
      fs::resize_file(folder_ + "/checkpoint-3/model.safetensors", 100);
      fs::remove(folder_ + "/checkpoint-2/manifest.json");
    }
    group.barrier();
    std::vector<std::string> skipped;
    const auto restore = [&](const std::string& from) {
      return checkpoint::restore_checkpoint(sharded, &optimizer, from);
    };
    const auto last = checkpoint::last_checkpoint(folder_, restore, skipped);
    ASSERT_TRUE(last.has_value());
    EXPECT_EQ(last->step, 1);
    ASSERT_EQ(skipped.size(), 3u);
    EXPECT_NE(skipped[0].find("was not written to its end"), std::string::npos);
    EXPECT_NE(skipped[1].find("'model.safetensors' has 100 bytes"), std::string::npos);
    EXPECT_NE(skipped[2].find("has no manifest.json"), std::string::npos);
  });
}

using TwoRuns = Saver;

TEST_F(TwoRuns, TheSecondIsTurnedAwayByName) {
  const auto solo = comm::make_solo();
  {
    const CheckpointSaver first(*solo, folder_, 0, SaveQueue::Mode::kNow);
    try {
      const CheckpointSaver second(*solo, folder_, 0, SaveQueue::Mode::kNow);
      FAIL() << "expected an error";
    } catch (const CheckpointError& e) {
      EXPECT_NE(std::string(e.what()).find("another run (process " + std::to_string(getpid())), std::string::npos)
          << e.what();
    }
  }
  EXPECT_NO_THROW(CheckpointSaver(*solo, folder_, 0, SaveQueue::Mode::kNow));
}

// Its lock goes with a folder that is removed; so it asks for the lock of the folder that is there.
TEST_F(TwoRuns, TheSecondTakesTheFolderThatIsThereWhenTheFirstOnesWasRemoved) {
  auto first = std::make_unique<checkpoint::RunLock>(folder_);
  std::unique_ptr<checkpoint::RunLock> second;
  std::thread waiting([&] { second = std::make_unique<checkpoint::RunLock>(folder_); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it has opened the first one's file
  fs::remove_all(folder_);
  first = nullptr;
  waiting.join();
  EXPECT_NO_THROW(second->check());
  EXPECT_TRUE(fs::exists(folder_ + "/.tessera.lock"));
}

using AFolderTakenAway = Saver;

TEST_F(AFolderTakenAway, IsNamedOnEveryRankAndNothingIsWrittenThere) {
  const std::vector<std::pair<const char*, std::function<void()>>> ways = {
      {"was removed", [&] { fs::remove_all(folder_); }},
      {"was removed", [&] { fs::rename(folder_, folder_ + "_moved"); }},
      {"was removed", [&] { fs::remove(folder_ + "/.tessera.lock"); }},
      {"was replaced", [&] {
         fs::remove_all(folder_);
         const checkpoint::RunLock other(folder_);
       }}};
  for (const auto& [says, take_away] : ways) {
    fs::remove_all(folder_);
    on_ranks(2, [&, says = says, &take_away = take_away](comm::Communicator& group, SmallNet&,
                                                         fsdp::FullyShardedDataParallel&, optim::Optimizer&) {
      CheckpointSaver saver(group, folder_, 0, SaveQueue::Mode::kNow);
      EXPECT_NO_THROW(saver.check_files());
      EXPECT_FALSE(saver.has_lost_files());
      group.barrier();
      if (group.rank() == 1) take_away();
      group.barrier();
      EXPECT_EQ(saver.has_lost_files(), group.rank() == 0);
      for (const auto& use :
           std::vector<std::function<void()>>{[&] { saver.check_files(); }, [&] { saver.begin(1, ""); }}) {
        try {
          use();
          ADD_FAILURE() << "expected an error";
        } catch (const CheckpointError& e) {
          const std::string message = e.what();
          EXPECT_NE(message.find("'" + folder_ + "' was taken away from this run"), std::string::npos) << message;
          EXPECT_NE(message.find(says), std::string::npos) << message;
        }
      }
    });
    EXPECT_TRUE(checkpoint::list_checkpoints(folder_).empty());
    EXPECT_FALSE(fs::exists(checkpoint::partial_folder(folder_, 1)));
  }
  fs::remove_all(folder_ + "_moved");
}

TEST_P(Saver, AFolderTakenAwayDuringASaveIsNamed) {
  on_ranks(2, [&](comm::Communicator& group, SmallNet& model, fsdp::FullyShardedDataParallel& sharded,
                  optim::Optimizer& optimizer) {
    CheckpointSaver saver(group, folder_, 0, GetParam());
    step(model, sharded, optimizer, 0, saver);
    const std::string to = saver.begin(1, "");
    checkpoint::save_pretrained(sharded, {.files = {.model = to, .tokenizer = {}}}, to, &saver.queue());
    if (group.rank() == 0) saver.queue().push([&] { fs::remove_all(folder_); });
    EXPECT_THROW(
        {
          saver.end();
          saver.finish();
        },
        CheckpointError);
  });
  EXPECT_FALSE(fs::exists(folder_ + "/checkpoint-1"));
}

}  // namespace
}  // namespace tessera
