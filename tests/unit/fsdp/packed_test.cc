// Packed weights are sharded as bytes: same losses as over the dequantised base, same bytes everywhere.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "support/packed_net.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/optimizer.h"

namespace tessera::fsdp {
namespace {

using testing::Base;
using testing::fixed_values;
using testing::loss_of;
using testing::PackedNet;
using testing::same_bytes;

struct PackedCase {
  int world = 1;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  int shard_group = 0;
  GatherForm form = GatherForm::kCopy;
  std::optional<at::ScalarType> compute = {};
};

FsdpOptions packed_options(const PackedCase& c) {
  FsdpOptions options;
  options.strategy = c.strategy;
  options.shard_group_size = c.shard_group;
  options.wrap = wrap_classes({"AdaptedLayer"});
  options.precision.param_dtype = c.compute;
  options.gather = c.form;
  return options;
}

struct PackedResult {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> whole;  // all parameters at the end
  CommStats stats;
  MemoryStats memory;
};

/// One for each rank.
std::vector<PackedResult> train_packed(const PackedCase& c, Base base,
                                       std::shared_ptr<const io::TensorSource> source = nullptr) {
  std::vector<PackedResult> results(static_cast<std::size_t>(c.world));
  comm::run_threads(c.world, [&](std::shared_ptr<comm::Communicator> group) {
    auto& result = results[static_cast<std::size_t>(group->rank())];
    PackedNet net(base);
    auto options = packed_options(c);
    options.source = source;
    auto sharded = fully_shard(net, group, options);
    optim::AdamW optimizer(sharded->parameters(), {.lr = 1e-2});
    for (int step = 0; step < 4; ++step) {
      // As many rows as both ways make panels of: fewer add the same products in another order (nn/ops/gemm.h).
      const auto x = fixed_values({32, 6}, 100.0 + 10 * step + group->rank(), 1.0);
      auto loss = loss_of(net(x), group->rank(), step);
      loss.backward();
      result.losses.push_back(loss.item<double>());
      optimizer.step();
      optimizer.zero_grad();
    }
    result.stats = sharded->comm_stats();
    result.memory = sharded->memory();
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) { result.whole[name] = t.clone(); });
  });
  return results;
}

void expect_unchanged(const std::vector<PackedResult>& results) {
  for (const auto& [name, bytes] : PackedNet(Base::kPacked).packed_values())
    for (const auto& result : results) EXPECT_TRUE(same_bytes(result.whole.at(name), bytes)) << name;
}

void expect_as_over_dense(const PackedCase& c, std::shared_ptr<const io::TensorSource> source = nullptr) {
  const auto packed = train_packed(c, Base::kPacked, std::move(source));
  const auto dense =
      train_packed({c.world, c.strategy, c.shard_group, GatherForm::kCopy, c.compute}, Base::kDequantised);
  for (std::size_t r = 0; r < packed.size(); ++r) {
    EXPECT_EQ(packed[r].losses, dense[r].losses);
    EXPECT_FALSE(same_bytes(packed[r].whole.at("layer0.b"), PackedNet(Base::kPacked).layers[0]->b));
    for (const auto& [name, value] : packed[r].whole)
      if (name.find("weight") == std::string::npos) {
        EXPECT_TRUE(same_bytes(value, dense[r].whole.at(name))) << name;
      }
  }
  expect_unchanged(packed);
}

TEST(Packed, TrainsUnderEveryStrategyAsOverTheDequantisedBase) {
  const std::vector<std::pair<ShardingStrategy, int>> strategies = {
      {ShardingStrategy::kFullShard, 0}, {ShardingStrategy::kShardGradOp, 0}, {ShardingStrategy::kNoShard, 0}};
  for (int world : {1, 2, 3})
    for (auto [strategy, group] : strategies)
      for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
        SCOPED_TRACE(::testing::Message() << world << " ranks, strategy " << static_cast<int>(strategy) << ", form "
                                          << static_cast<int>(form));
        expect_as_over_dense({world, strategy, group, form});
      }
  for (auto strategy : {ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2})
    for (auto form : {GatherForm::kCopy, GatherForm::kShared}) expect_as_over_dense({4, strategy, 2, form});
}

TEST(Packed, ComputesInTheParamDtypeAndCastsNoField) {
  for (auto form : {GatherForm::kCopy, GatherForm::kShared})
    expect_as_over_dense({2, ShardingStrategy::kFullShard, 0, form, at::kBFloat16});
}

TEST(Packed, IsMappedFromAFileInPlace) {
  test::TempFolder folder("packed_test");
  const auto values = PackedNet(Base::kPacked).packed_values();
  io::write_safetensors(folder.path() + "/base.safetensors", values);
  const auto source = io::open_weights(folder.path() + "/base.safetensors");
  std::int64_t bytes = 0;
  for (const auto& [name, value] : values) bytes += static_cast<std::int64_t>(value.nbytes());
  const PackedCase c{2, ShardingStrategy::kFullShard, 0, GatherForm::kAuto};
  expect_as_over_dense(c, source);
  for (const auto& result : train_packed(c, Base::kPacked, source)) EXPECT_EQ(result.memory.mapped_bytes, bytes);
}

TEST(Packed, AGatherMovesThePackedBytes) {
  const PackedCase c{2};
  const auto gathered = [](const std::vector<PackedResult>& results) { return results[0].stats.gathered_bytes; };
  const auto packed = train_packed(c, Base::kPacked), dense = train_packed(c, Base::kDequantised);
  EXPECT_EQ(packed[0].stats.gathers, dense[0].stats.gathers);
  // 3 bytes of 4 are saved; an absmax for each 32 elements, and rounding up to entries and slices, come on top.
  const std::int64_t numel = 6 * 21 + 21 * 17 + 17 * 6, times = packed[0].stats.gathers / 3;
  EXPECT_EQ(times, 8);  // 4 steps, forward and backward
  EXPECT_LE(gathered(packed), gathered(dense) - times * (numel * 3 - numel / 8 - 3 * (4 + 64 + 64 + 128)));
  EXPECT_LT(packed[0].memory.peak_gathered_bytes, dense[0].memory.peak_gathered_bytes);
}

/// Counts the bytes that are read.
class CountingBytes final : public io::TensorSource {
 public:
  explicit CountingBytes(std::shared_ptr<const io::TensorSource> base) : base_(std::move(base)) {}
  const std::vector<io::TensorInfo>& tensors() const override { return base_->tensors(); }
  const io::TensorInfo* find(const std::string& name) const override { return base_->find(name); }
  void read(const std::string& name, std::int64_t, at::Tensor) const override { throw Error("cast: " + name); }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const std::int64_t block = name.ends_with("absmax") ? 4 : 32, end = begin + out.numel();
    EXPECT_EQ(begin % block, 0) << name;
    EXPECT_TRUE(end % block == 0 || end == find(name)->nbytes()) << name;
    bytes += out.numel();
    base_->read_bytes(name, begin, std::move(out));
  }
  std::optional<io::MappedTensor> map(const std::string&) const override { return std::nullopt; }
  mutable std::atomic<std::int64_t> bytes{0};

 private:
  std::shared_ptr<const io::TensorSource> base_;
};

/// Codes of all kinds, and statistics that are signalling NaNs: any arithmetic would change their bits.
std::vector<std::pair<std::string, at::Tensor>> unusual_values() {
  auto values = PackedNet(Base::kPacked).packed_values();
  for (auto& [name, value] : values) {
    auto* bytes = static_cast<std::uint8_t*>(value.mutable_data_ptr());
    for (std::size_t i = 0; i < value.nbytes(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
    if (value.scalar_type() != at::kFloat) continue;
    const std::uint32_t nan = 0x7fa00001;
    for (std::int64_t i = 0; i < value.numel(); ++i) std::memcpy(bytes + 4 * i, &nan, 4);
  }
  return values;
}

TEST(Packed, EachRankReadsItsOwnBlocksOnceAndBytesStayAsTheyAre) {
  const auto values = unusual_values();
  std::int64_t total = 0;
  for (const auto& [name, value] : values) total += static_cast<std::int64_t>(value.nbytes());
  for (auto form : {GatherForm::kCopy, GatherForm::kShared}) {
    for (int world : {1, 2, 3}) {
      const auto source = std::make_shared<CountingBytes>(io::memory_source(values));
      comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
        PackedNet net(Base::kPacked);
        auto options = packed_options({world, ShardingStrategy::kFullShard, 0, form, at::kBFloat16});
        options.source = source;
        auto sharded = fully_shard(net, group, options);
        std::map<std::string, at::Tensor> whole;
        sharded->visit_full([&](const std::string& name, const at::Tensor& t) { whole[name] = t.clone(); });
        for (const auto& [name, value] : values) EXPECT_TRUE(same_bytes(whole.at(name), value)) << name;
        for (const auto& view : sharded->shards()) {
          if (!view.packed) continue;
          EXPECT_EQ(view.local.scalar_type(), whole.at(view.name).scalar_type());
          const auto part = whole.at(view.name).view(-1).narrow(0, view.offset, view.local.numel());
          EXPECT_TRUE(same_bytes(view.local, part)) << view.name;
        }
      });
      EXPECT_EQ(source->bytes, total);
    }
  }
}

TEST(Packed, RankZerosBytesReachTheOthers) {
  std::vector<PackedResult> results(2);
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    PackedNet net(Base::kPacked);
    if (group->rank() == 1)
      for (auto& p : net.parameters()) p.detach().view(-1).view(at::kByte).fill_(77);
    auto options = packed_options({2});
    options.sync_module_states = true;
    auto sharded = fully_shard(net, group, options);
    sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
      results[static_cast<std::size_t>(group->rank())].whole[name] = t.clone();
    });
  });
  expect_unchanged(results);
}

std::string failure_of(int world, const std::function<void(PackedNet&, int)>& prepare) {
  std::string message;
  std::mutex mutex;
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    PackedNet net(Base::kPacked, /*block=*/32 + 32 * (group->rank() % 2));
    prepare(net, group->rank());
    try {
      fully_shard(net, group, packed_options({world}));
    } catch (const ConfigError& e) {
      const std::lock_guard lock(mutex);
      message = e.what();
    }
  });
  return message;
}

TEST(Packed, RanksWithOtherCodecsAreToldSo) {
  const auto message = failure_of(2, [](PackedNet&, int) {});
  EXPECT_NE(message.find("int8, blocks of 32"), std::string::npos) << message;
}

TEST(Packed, AStatisticThatIsToTrainIsRefused) {
  const auto message =
      failure_of(1, [](PackedNet& net, int) { net.layers[1]->packed->parameters()[0].set_requires_grad(true); });
  EXPECT_NE(message.find("'layer1.weight.absmax' is packed"), std::string::npos) << message;
}

TEST(Packed, AFileWithAnotherNumberOfBytesIsRefused) {
  auto values = PackedNet(Base::kPacked).packed_values();
  values[0].second = at::zeros({3}, at::kByte);
  auto options = packed_options({1});
  options.source = io::memory_source(values);
  PackedNet net(Base::kPacked);
  try {
    fully_shard(net, comm::make_solo(), options);
    FAIL() << "it was taken";
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("has 3 bytes, the model's packed parameter 'layer0.weight' has 126"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace tessera::fsdp
