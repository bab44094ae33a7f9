// What Accelerate writes, by us: every type reads back to the same values, at any number of ranks.
#include "checkpoint/torch_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "checkpoint/open_state.h"
#include "io/torch_file.h"
#include "support/fake_device.h"
#include "support/temp_folder.h"
#include "support/train_small_net.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::TorchStateType;
using testing::SmallNet;

class TorchState : public ::testing::TestWithParam<TorchStateType> {
 protected:
  std::map<std::string, at::Tensor> run(int world, int first, int last, bool load, bool save,
                                        fsdp::ShardingStrategy strategy = fsdp::ShardingStrategy::kFullShard,
                                        fsdp::StateOn state_on = fsdp::StateOn::kHost) {
    std::map<std::string, at::Tensor> weights;
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      SmallNet model(testing::NetOptions{});
      fsdp::FsdpOptions options{.strategy = strategy, .wrap = fsdp::wrap_classes({"MlpBlock"}), .state_on = state_on};
      if (state_on == fsdp::StateOn::kDevice) options.device = test::fake_device();
      auto sharded = fsdp::fully_shard(model, group, options);
      optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), testing::adamw_options());
      if (load) checkpoint::load_torch_state(*sharded, &optimizer, {}, folder_);
      for (int step = first; step < last; ++step) {
        testing::loss_of(model(testing::batch(0, step)), 0, step).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      if (save) {
        checkpoint::SaveQueue now;
        checkpoint::push_torch_model(*sharded, folder_, GetParam(), nullptr, now, tied_);
        checkpoint::push_torch_optimizer(*sharded, optimizer, {}, folder_, GetParam(), nullptr, now);
        checkpoint::throw_failure_of_any(*group, now.take_failure(), folder_);
      }
      sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
        if (group->rank() == 0) weights[name] = t.detach().clone();
      });
    });
    return weights;
  }
  static double worst(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
    double result = 0;
    for (const auto& [name, t] : a) result = std::max(result, (t - b.at(name)).abs().max().item<double>());
    return result;
  }

  const test::TempFolder temporary_{"torch_state"};
  const std::string& folder_ = temporary_.path();
  std::vector<checkpoint::TiedName> tied_;
};

TEST_P(TorchState, TheSameWorldSizeContinuesBitEqual) {
  const auto whole = run(3, 0, 6, false, false);
  run(3, 0, 3, false, true);
  EXPECT_EQ(worst(run(3, 3, 6, true, false), whole), 0.0);
}

TEST_P(TorchState, AnotherWorldSizeAndStrategyContinueWithinRounding) {
  const auto whole = run(3, 0, 6, false, false);
  run(3, 0, 3, false, true);
  for (const int world : {1, 2, 4}) EXPECT_LT(worst(run(world, 3, 6, true, false), whole), 1e-5) << world;
  EXPECT_LT(worst(run(2, 3, 6, true, false, fsdp::ShardingStrategy::kNoShard), whole), 1e-5);
}

TEST_P(TorchState, StateThatLiesOnADeviceGoesOnThereAndOnTheCpu) {
  const auto there = [&](int first, int last, bool load, bool save) {
    return run(1, first, last, load, save, fsdp::ShardingStrategy::kFullShard, fsdp::StateOn::kDevice);
  };
  const auto whole = there(0, 6, false, false);
  there(0, 3, false, true);
  EXPECT_EQ(worst(there(3, 6, true, false), whole), 0.0);
  EXPECT_LT(worst(run(2, 3, 6, true, false), whole), 1e-5);
}

TEST_P(TorchState, OneReplicaWrites) {
  run(2, 0, 3, false, true, fsdp::ShardingStrategy::kNoShard);
  EXPECT_FALSE(fs::exists(folder_ + "/pytorch_model_fsdp_rank1.bin"));
  EXPECT_FALSE(fs::exists(folder_ + "/pytorch_model_fsdp_0/__1_0.distcp"));
  EXPECT_LT(worst(run(3, 3, 6, true, false), run(3, 0, 6, false, false)), 1e-5);
}

TEST_P(TorchState, AMissingFileOfARankIsAnError) {
  run(2, 0, 1, false, true);
  if (GetParam() == TorchStateType::kFull) fs::remove(folder_ + "/optimizer.bin");
  if (GetParam() == TorchStateType::kSharded) fs::remove(folder_ + "/pytorch_model_fsdp_0/__1_0.distcp");
  if (GetParam() == TorchStateType::kLocal) fs::remove(folder_ + "/pytorch_model_fsdp_rank1.bin");
  EXPECT_THROW(run(1, 0, 1, true, false), Error);
}

// torch's loaders ask for every name of a state dict.
TEST_P(TorchState, ATiedWeightIsThereUnderAllItsNames) {
  if (GetParam() == TorchStateType::kLocal) return;  // our own names
  const std::string parameter = run(3, 0, 1, false, false).begin()->first;
  tied_ = {{"other.name", parameter}};
  const auto weights = run(3, 0, 1, false, true);
  const auto there = checkpoint::open_torch_model(folder_);
  EXPECT_EQ(there->tensors().size(), weights.size() + 1);
  const auto* info = there->find("other.name");
  ASSERT_TRUE(info);
  at::Tensor found = at::empty({info->numel()});
  there->read("other.name", 0, found);
  EXPECT_TRUE(at::equal(found, weights.at(parameter).flatten()));
  EXPECT_EQ(info->shape, weights.at(parameter).sizes().vec());
}

TEST_P(TorchState, FilesOfSingleRanksThatOnlyAccelerateReadsAreRefusedByName) {
  write_file_atomically(folder_ + "/pytorch_model_fsdp_0_rank0.bin", "a DTensor");
  ASSERT_TRUE(checkpoint::has_torch_state(folder_));
  const auto said = [](const std::function<void()>& read) {
    try {
      read();
    } catch (const CheckpointError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const auto& text : {said([&] { run(1, 0, 1, true, false); }), said([&] { checkpoint::open_state(folder_); })}) {
    EXPECT_NE(text.find("pytorch_model_fsdp_0_rank0.bin"), std::string::npos) << text;
    EXPECT_NE(text.find("use_dcp=True"), std::string::npos) << text;
  }
  run(2, 0, 1, false, true);  // a model that is read lies beside them
  EXPECT_NO_THROW(run(1, 0, 1, true, false));
}

TEST(OpenState, SaysThatAPathDoesNotExist) {
  try {
    checkpoint::open_state("/nowhere/run");
    FAIL() << "expected an error";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("'/nowhere/run' does not exist"), std::string::npos) << e.what();
  }
}

std::string name_of_type(const ::testing::TestParamInfo<TorchStateType>& info) {
  return info.param == TorchStateType::kFull ? "Full" : info.param == TorchStateType::kSharded ? "Sharded" : "Local";
}

INSTANTIATE_TEST_SUITE_P(Types, TorchState,
                         ::testing::Values(TorchStateType::kFull, TorchStateType::kSharded, TorchStateType::kLocal),
                         name_of_type);

}  // namespace
}  // namespace tessera
