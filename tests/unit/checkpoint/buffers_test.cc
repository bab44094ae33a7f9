// Buffers (a BatchNorm's statistics) are saved and read with the parameters.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <map>
#include <memory>
#include <string>

#include "support/small_net.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/state.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

using testing::fixed_values;

struct Normed final : nn::Layer {
  std::shared_ptr<testing::Affine> affine = register_module("affine", std::make_shared<testing::Affine>(4, 4, 1));
  torch::nn::BatchNorm1d norm{nullptr};
  Normed() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
  std::string class_name() const override { return "Normed"; }
  at::Tensor forward_impl(at::Tensor x) override { return norm((*affine)(x)); }
};

struct ShardedNormed {
  std::shared_ptr<Normed> net = std::make_shared<Normed>();
  std::unique_ptr<fsdp::FullyShardedDataParallel> model;
  std::unique_ptr<optim::AdamW> optimizer;
  explicit ShardedNormed(std::shared_ptr<comm::Communicator> group,
                         std::shared_ptr<const io::TensorSource> source = nullptr) {
    model = fsdp::fully_shard(*net, std::move(group), {.wrap = fsdp::wrap_classes({"Affine"}), .source = source});
    optimizer =
        std::make_unique<optim::AdamW>(model->parameters(), fsdp::parameter_slices(*model), optim::AdamWOptions{});
  }
  /// Each rank sees other rows.
  void run(int rank) {
    for (int step = 0; step < 3; ++step) (*net)(fixed_values({5, 4}, 10.0 * step + rank, 1));
  }
};

void expect_buffers(const Normed& found, const Normed& expected) {
  EXPECT_EQ(expected.named_buffers().size(), 3);
  EXPECT_GT(expected.norm->num_batches_tracked.item<std::int64_t>(), 0);
  for (const auto& buffer : expected.named_buffers())
    EXPECT_TRUE(at::equal(found.named_buffers()[buffer.key()], buffer.value())) << buffer.key();
}

TEST(Buffers, OfRankZeroAreInTheFileOfWeights) {
  const test::TempFolder folder("buffers");
  const auto file = folder.path() + "/weights.safetensors";
  Normed expected;
  for (int step = 0; step < 3; ++step) expected(fixed_values({5, 4}, 10.0 * step, 1));
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    ShardedNormed saved(group);
    saved.run(group->rank());
    checkpoint::save_weights(*saved.model, file);
    ShardedNormed loaded(group);
    checkpoint::load_weights(*loaded.model, file);
    expect_buffers(*loaded.net, expected);
    expect_buffers(*ShardedNormed(group, io::open_weights(file)).net, expected);
  });
  comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
    const auto lacking = folder.path() + "/lacking.safetensors";
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    const auto source = io::open_weights(file);
    for (const auto& info : source->tensors())
      if (info.name != "norm.running_var") tensors.emplace_back(info.name, io::read_tensor(*source, info.name));
    io::write_safetensors(lacking, tensors);
    ShardedNormed model(group);
    EXPECT_THROW(checkpoint::load_weights(*model.model, lacking), DataError);
  });
}

TEST(Buffers, OfEachRankGoOnWithTheTrainingState) {
  const test::TempFolder folder("buffers");
  std::map<int, std::shared_ptr<Normed>> expected;
  for (int rank = 0; rank < 2; ++rank) {
    expected[rank] = std::make_shared<Normed>();
    for (int step = 0; step < 3; ++step) (*expected[rank])(fixed_values({5, 4}, 10.0 * step + rank, 1));
  }
  for (int world : {2, 3, 1}) {
    comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
      if (world == 2) {
        ShardedNormed saved(group);
        saved.run(group->rank());
        checkpoint::save_training_state(*saved.model, *saved.optimizer, folder.path());
      }
      ShardedNormed loaded(group);
      checkpoint::load_training_state(*loaded.model, loaded.optimizer.get(), folder.path());
      expect_buffers(*loaded.net, *expected.at(world == 2 ? group->rank() : 0));  // of another world rank 0's
    });
  }
}

}  // namespace
}  // namespace tessera
