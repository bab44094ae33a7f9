// Initial values come from a source, each rank reading only its own ranges.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "support/train_small_net.h"
#include "tensor/storage.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/init.h"

namespace tessera::fsdp {
namespace {

using testing::batch;
using testing::SmallNet;

/// The parameters of a net in memory; counts what is read.
class CountingSource final : public io::TensorSource {
 public:
  explicit CountingSource(SmallNet& net) {
    for (auto& p : net.named_parameters()) {
      values_[p.key()] = p.value().detach().clone();
      infos_.push_back({p.key(), p.value().scalar_type(), p.value().sizes().vec(), "memory"});
    }
  }
  const std::vector<io::TensorInfo>& tensors() const override { return infos_; }
  const io::TensorInfo* find(const std::string& name) const override {
    for (const auto& i : infos_)
      if (i.name == name) return &i;
    return nullptr;
  }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    elements_read += out.numel();
    out.copy_(values_.at(name).view(-1).narrow(0, begin, out.numel()));
  }
  std::optional<io::MappedTensor> map(const std::string& name) const override {
    auto keep = std::make_shared<at::Tensor>(values_.at(name));
    return io::MappedTensor{static_cast<std::byte*>(keep->mutable_data_ptr()), keep};
  }
  mutable std::atomic<std::int64_t> elements_read{0};
  std::vector<io::TensorInfo> infos_;
  std::map<std::string, at::Tensor> values_;
};

/// Elements of the samples by which ranks find out that they read the same weights: 256 bytes of each parameter.
std::int64_t sampled(const SmallNet& net) {
  std::int64_t n = 0;
  for (const auto& p : net.parameters()) n += std::min<std::int64_t>(p.numel(), 64);
  return n;
}

void forget_values(SmallNet& net) {
  for (auto& p : net.named_parameters())
    p.value().set_data(tensor::make_detached(p.value().sizes(), at::kFloat, "no value yet: " + p.key()));
}

TEST(Loading, EachRankReadsItsOwnRangesOnce) {
  SmallNet original;
  const auto expected = original(batch(0, 0)).detach();
  std::int64_t total = 0;
  for (auto& p : original.parameters()) total += p.numel();
  for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
    std::atomic<std::int64_t> read{0};
    comm::run_threads(3, [&](std::shared_ptr<comm::Communicator> group) {
      auto source = std::make_shared<CountingSource>(original);
      SmallNet net;
      forget_values(net);
      auto sharded = fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"}), .gather = form, .source = source});
      std::int64_t mine = 0;
      for (const auto& s : sharded->shards()) mine += s.local.numel();
      EXPECT_EQ(source->elements_read, mine + sampled(net));
      EXPECT_LE(mine, total / 3 + 200);
      read += source->elements_read - sampled(net);
      EXPECT_TRUE(at::equal(net(batch(0, 0)).detach(), expected));
    });
    EXPECT_EQ(read, total);
  }
}

TEST(Loading, FrozenParametersAreMappedAndTrainOnesRead) {
  SmallNet original;
  const auto expected = original(batch(0, 0)).detach();
  auto source = std::make_shared<CountingSource>(original);
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    SmallNet net;
    for (auto& p : net.parameters()) p.set_requires_grad(false);
    net.blocks[2]->scale.set_requires_grad(true);
    forget_values(net);
    net.blocks[2]->scale.set_requires_grad(true);
    auto sharded = fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"}), .source = source});
    EXPECT_EQ(net.stem->weight.data_ptr(), source->values_["stem.weight"].data_ptr());
    EXPECT_EQ(sharded->memory().mapped_bytes, (7 * 6 + 7 + 3 * (77 + 11 + 77 + 7 + 1) + 7 * 6 + 6 - 1) * 4);
    EXPECT_TRUE(at::equal(net(batch(0, 0)).detach(), expected));
    auto loss = net(batch(0, 0)).sum();
    loss.backward();
    EXPECT_EQ(sharded->comm_stats().reductions, 1);
    EXPECT_NE(sharded->to_string().find("mapped"), std::string::npos);
  });
  EXPECT_EQ(source->elements_read, 1 + 2 * sampled(original));
}

TEST(Loading, OtherFileDtypesAreNotMappedAndForcingSaysWhy) {
  SmallNet original;
  auto source = std::make_shared<CountingSource>(original);
  const MixedPrecision bf16{.param_dtype = at::kBFloat16};
  SmallNet net;
  for (auto& p : net.parameters()) p.set_requires_grad(false);
  try {
    fully_shard(net, comm::make_solo(), {.precision = bf16, .gather = GatherForm::kMapped, .source = source});
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("holds Float, the computation needs BFloat16"), std::string::npos) << e.what();
  }
  auto sharded = fully_shard(net, comm::make_solo(), {.precision = bf16, .source = source});
  EXPECT_EQ(sharded->memory().mapped_bytes, 0);
}

TEST(Loading, NamesInTheFileMayDiffer) {
  SmallNet original;
  auto source = std::make_shared<CountingSource>(original);
  for (auto& i : source->infos_) i.name = "model." + i.name;
  std::map<std::string, at::Tensor> renamed;
  for (auto& [name, t] : source->values_) renamed["model." + name] = t;
  source->values_ = renamed;
  SmallNet net;
  forget_values(net);
  auto sharded = fully_shard(net, comm::make_solo(),
                             {.source = source, .source_name = [](const std::string& n) { return "model." + n; }});
  EXPECT_TRUE(at::equal(net(batch(0, 0)), original(batch(0, 0))));
}

TEST(Loading, WhatTheSourceLacksIsInitialisedUnitByUnit) {
  SmallNet original;
  const auto values = original.named_parameters();
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    auto source = std::make_shared<CountingSource>(original);
    std::erase_if(source->infos_, [](const auto& info) { return info.name.find("weight") != std::string::npos; });
    SmallNet net;
    forget_values(net);
    std::vector<std::string> asked;
    const auto block_of = [](const std::string& name) { return name.substr(0, name.find('.')); };
    const auto init = [&](const std::string& name, const at::Tensor& parameter) {
      for (const auto& other : net.named_parameters()) {
        if (block_of(other.key()) == block_of(name) || block_of(name).find("block") == std::string::npos) continue;
        EXPECT_TRUE(tensor::is_detached(other.value())) << other.key() << " is whole while " << name << " is made";
      }
      asked.push_back(name);
      const auto memory = parameter.detach();
      nn::allocate(memory);
      memory.copy_(values[name]);
    };
    auto sharded =
        fully_shard(net, group, {.wrap = wrap_classes({"MlpBlock"}), .source = source, .param_init_fn = init});
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
      EXPECT_TRUE(at::equal(t, values[name])) << name;
      EXPECT_EQ(std::count(asked.begin(), asked.end(), name), name.find("weight") != std::string::npos) << name;
    });
  });
}

TEST(Loading, AnInitialisationThatForgetsAParameterIsNamed) {
  SmallNet empty;
  forget_values(empty);
  try {
    fully_shard(empty, comm::make_solo(), {.param_init_fn = [](const std::string&, const at::Tensor&) {}});
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("has no value"), std::string::npos) << e.what();
  }
}

TEST(Loading, MissingAndMisshapenTensorsAreNamed) {
  SmallNet original;
  auto source = std::make_shared<CountingSource>(original);
  for (auto& i : source->infos_)
    if (i.name == "stem.weight") i.shape = {6, 7};
  SmallNet net;
  try {
    fully_shard(net, comm::make_solo(), {.source = source});
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("'stem.weight' has shape [6, 7]"), std::string::npos) << e.what();
  }
  SmallNet empty;
  forget_values(empty);
  try {
    fully_shard(empty, comm::make_solo(), {});
    FAIL();
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("'stem.weight' has no value"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tessera::fsdp
