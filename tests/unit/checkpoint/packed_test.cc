// Units with packed weights in files: bytes stay as they are, and a run goes on bit for bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/pretrained.h"
#include "checkpoint/training_state.h"
#include "support/packed_net.h"
#include "support/temp_folder.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/optimizer.h"

namespace tessera {
namespace {

using testing::Base;
using testing::PackedNet;
using testing::same_bytes;
using Tensors = std::map<std::string, at::Tensor>;
using Sharded = fsdp::FullyShardedDataParallel;

Tensors whole_values(Sharded& sharded) {
  Tensors out;
  sharded.visit_full([&](const std::string& name, const at::Tensor& t) { out[name] = t.detach().clone(); });
  return out;
}

void expect_same_values(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_TRUE(same_bytes(actual.at(name), value)) << name;
}

/// A net of `world` ranks whose values come from the file, or are its own.
void on_packed_ranks(int world, const std::string& file,
                     const std::function<void(PackedNet&, Sharded&, optim::Optimizer&)>& body) {
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    PackedNet net(Base::kPacked);
    fsdp::FsdpOptions options{.wrap = fsdp::wrap_classes({"AdaptedLayer"}), .gather = fsdp::GatherForm::kCopy};
    if (!file.empty()) {
      options.source = io::open_weights(file);
      for (auto& p : net.parameters()) p.detach().zero_();
    }
    auto sharded = fsdp::fully_shard(net, group, options);
    optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), {.lr = 1e-2});
    body(net, *sharded, optimizer);
  });
}

void train_packed_net(PackedNet& net, Sharded& sharded, optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    testing::loss_of(net(testing::batch(0, step)), 0, step).backward();
    sharded.clip_grad_norm(0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(PackedCheckpoint, AnyNumberOfRanksReadsTheBytesAndTheSameNumberGoesOnBitForBit) {
  const test::TempFolder folder("packed_checkpoint");
  const auto file = folder.path() + "/model.safetensors", state = folder.path() + "/state";
  Tensors halfway, end;
  on_packed_ranks(2, "", [&](PackedNet& net, Sharded& sharded, optim::Optimizer& optimizer) {
    train_packed_net(net, sharded, optimizer, 0, 2);
    checkpoint::save_weights(sharded, file);
    checkpoint::save_training_state(sharded, optimizer, state);
    const auto saved = whole_values(sharded);
    train_packed_net(net, sharded, optimizer, 2, 4);
    const auto trained = whole_values(sharded);
    if (sharded.group().rank() == 0) halfway = saved, end = trained;
  });
  for (const auto& [name, bytes] : PackedNet(Base::kPacked).packed_values())
    EXPECT_TRUE(same_bytes(halfway.at(name), bytes)) << name;
  for (int world : {1, 2, 3})
    on_packed_ranks(world, file, [&](PackedNet& net, Sharded& sharded, optim::Optimizer& optimizer) {
      expect_same_values(whole_values(sharded), halfway);
      checkpoint::load_weights(sharded, file);
      expect_same_values(whole_values(sharded), halfway);
      checkpoint::load_training_state(sharded, &optimizer, state);
      train_packed_net(net, sharded, optimizer, 2, 4);
      if (world == 2) expect_same_values(whole_values(sharded), end);
    });
}

TEST(PackedCheckpoint, ADtypeChosenForTheFileCastsNoField) {
  const test::TempFolder folder("packed_pretrained");
  on_packed_ranks(2, "", [&](PackedNet&, Sharded& sharded, optim::Optimizer&) {
    checkpoint::save_pretrained(sharded, {.dtype = at::kBFloat16}, folder.path());
  });
  const auto source = io::open_weights(folder.path());
  for (const auto& [name, bytes] : PackedNet(Base::kPacked).packed_values())
    EXPECT_TRUE(same_bytes(io::read_tensor(*source, name), bytes)) << name;
  EXPECT_EQ(source->find("layer0.bias")->dtype, at::kBFloat16);
}

}  // namespace
}  // namespace tessera
