// The estimate plays what the runtime does: operations of ranks that are sharded here, in their order, beside those
// that estimate::play_step() makes of the same units.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "estimate/step_time.h"
#include "support/small_net.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera {
namespace {

using estimate::PlayedEvent;
using Kind = PlayedEvent::Kind;

struct Recorded {
  Kind kind;
  std::int64_t numel;  // tells the unit
};
using Log = std::shared_ptr<std::vector<Recorded>>;

/// Notes the first time that somebody waits for it.
class NotedWork final : public comm::Work {
 public:
  NotedWork(std::unique_ptr<comm::Work> work, Log log, Recorded waited)
      : work_(std::move(work)), log_(std::move(log)), waited_(waited) {}
  void wait() override {
    note();
    work_->wait();
  }
  void wait_input_free() override {
    note();
    work_->wait_input_free();
  }

 private:
  void note() {
    if (log_) log_->push_back(waited_);
    log_ = nullptr;
  }
  std::unique_ptr<comm::Work> work_;
  Log log_;
  Recorded waited_;
};

class NotedGroup final : public comm::Communicator {
 public:
  NotedGroup(std::shared_ptr<comm::Communicator> inner, Log log, bool replicates)
      : inner_(std::move(inner)), log_(std::move(log)), replicates_(replicates) {}
  int rank() const noexcept override { return inner_->rank(); }
  int size() const noexcept override { return inner_->size(); }
  std::string backend() const override { return inner_->backend(); }
  std::unique_ptr<comm::Work> all_gather(at::Tensor out, at::Tensor in) override {
    return noted(Kind::kStartGather, Kind::kWaitGather, in.numel(), inner_->all_gather(out, in));
  }
  std::unique_ptr<comm::Work> reduce_scatter(at::Tensor out, at::Tensor in, comm::ReduceOptions how) override {
    return noted(Kind::kStartReduce, Kind::kWaitReduce, out.numel(), inner_->reduce_scatter(out, in, how));
  }
  std::unique_ptr<comm::Work> reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs,
                                            comm::ReduceOptions how) override {
    return noted(Kind::kStartReduce, Kind::kWaitReduce, out.numel(), inner_->reduce_shared(out, inputs, how));
  }
  std::unique_ptr<comm::Work> all_reduce(at::Tensor t, comm::ReduceOp op) override {
    if (!replicates_) return inner_->all_reduce(t, op);
    return noted(Kind::kStartReplicas, Kind::kWaitReplicas, t.numel(), inner_->all_reduce(t, op));
  }
  std::unique_ptr<comm::Work> broadcast(at::Tensor t, int src) override { return inner_->broadcast(t, src); }
  void barrier() override { inner_->barrier(); }
  std::vector<comm::Bytes> gather(const comm::Bytes& object, int dst) override { return inner_->gather(object, dst); }
  std::vector<comm::Bytes> all_gather_objects(const comm::Bytes& object) override {
    return inner_->all_gather_objects(object);
  }
  comm::Bytes scatter(const std::vector<comm::Bytes>& objects, int src) override {
    return inner_->scatter(objects, src);
  }
  comm::Bytes broadcast_object(const comm::Bytes& object, int src) override {
    return inner_->broadcast_object(object, src);
  }
  /// A mesh splits off the shard group first, then the copies of a slice.
  std::shared_ptr<comm::Communicator> split(int color) override {
    return std::make_shared<NotedGroup>(inner_->split(color), log_, splits_++ == 1);
  }
  std::shared_ptr<comm::SharedRegion> map_shared(std::int64_t bytes) override { return inner_->map_shared(bytes); }

 private:
  std::unique_ptr<comm::Work> noted(Kind start, Kind waited, std::int64_t numel, std::unique_ptr<comm::Work> work) {
    log_->push_back({start, numel});
    return std::make_unique<NotedWork>(std::move(work), log_, Recorded{waited, numel});
  }
  std::shared_ptr<comm::Communicator> inner_;
  Log log_;
  bool replicates_;
  int splits_ = 0;
};

/// Every unit larger than the one before, so that sizes tell them apart.
struct GrowingNet final : nn::Layer {
  static constexpr int kBlocks = 5;
  GrowingNet() {
    stem = register_module("stem", std::make_shared<testing::Affine>(6, 7, 1));
    for (int i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i),
                                       std::make_shared<testing::MlpBlock>(7, 40 * (i + 1), 3.0 + 2 * i)));
  }
  std::string class_name() const override { return "GrowingNet"; }
  at::Tensor forward_impl(at::Tensor x) override {
    x = (*stem)(x);
    for (auto& block : blocks) x = (*block)(x);
    return x;
  }
  std::shared_ptr<testing::Affine> stem;
  std::vector<std::shared_ptr<testing::MlpBlock>> blocks;
};

struct PlayedCase {
  estimate::Schedule schedule;
  estimate::Cluster cluster;
  bool checkpointing = false;
};

std::vector<PlayedEvent> run_third_step(const PlayedCase& c, fsdp::FsdpOptions options) {
  const Log log = std::make_shared<std::vector<Recorded>>();
  options.wrap = fsdp::wrap_classes({"MlpBlock"});
  options.forward_prefetch = c.schedule.forward_prefetch;
  options.max_gathers_in_flight = c.schedule.max_gathers_in_flight;
  if (c.checkpointing) options.activation_checkpointing = fsdp::same_as_wrap();
  comm::run_threads(c.cluster.hosts * c.cluster.ranks, [&](std::shared_ptr<comm::Communicator> world) {
    const Log own = world->rank() == 0 ? log : std::make_shared<std::vector<Recorded>>();
    const bool replicates = options.strategy == fsdp::ShardingStrategy::kNoShard;
    GrowingNet net;
    const auto sharded = fsdp::fully_shard(net, std::make_shared<NotedGroup>(world, own, replicates), options);
    for (int step = 0; step < 3; ++step) {
      own->clear();
      for (int i = 0; i < c.schedule.accumulation; ++i) {
        sharded->set_requires_gradient_sync(c.schedule.sync_each_batch || i + 1 == c.schedule.accumulation);
        net(at::ones({3, 6})).sum().backward();
      }
      sharded->zero_grad();
    }
  });
  std::set<std::int64_t> sizes;
  for (const auto& r : *log) sizes.insert(r.numel);
  std::vector<PlayedEvent> events;
  for (const auto& r : *log)
    events.push_back({r.kind, static_cast<int>(std::distance(sizes.begin(), sizes.find(r.numel)))});
  return events;
}

std::vector<PlayedEvent> played(const PlayedCase& c) {
  estimate::StepShape shape;
  shape.root = {.gathered = {100}, .reduced = 25};
  for (int i = 0; i < GrowingNet::kBlocks; ++i)
    shape.blocks.push_back(
        {.name = std::to_string(i), .forward = {1e9, 0}, .backward = {2e9, 0}, .gathered = {1000}, .reduced = 250});
  shape.checkpointing = c.checkpointing;
  return estimate::play_step(shape, c.schedule, c.cluster).events;
}

std::string text_of_events(const std::vector<PlayedEvent>& events) {
  const char* names[] = {"gather", "wait-gather", "reduce", "wait-reduce", "replicas", "wait-replicas"};
  std::string text;
  for (const auto& e : events) text += std::string(names[static_cast<int>(e.kind)]) + std::to_string(e.unit) + " ";
  return text;
}

constexpr estimate::Rates kRates{.flops = 1e12, .memory = 1e10, .link = 1e9, .latency = 1e-5};

TEST(PlayedOrder, OfShardsOnSeveralHostsIsTheRuntimes) {
  using config::BackwardPrefetch, config::ShardingStrategy;
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp})
    for (const auto backward : {BackwardPrefetch::kNone, BackwardPrefetch::kPre, BackwardPrefetch::kPost})
      for (const int limit : {0, 1, 2})
        for (const int variant : {0, 1, 2, 3}) {  // as it is; accumulates, checkpoints, accumulates sums
          const bool accumulates = variant == 1 || variant == 3;
          const PlayedCase c{
              {strategy, accumulates ? 2 : 1, variant == 3, backward, limit != 1, limit}, {2, 1, kRates}, variant == 2};
          fsdp::FsdpOptions options;
          options.gather = fsdp::GatherForm::kCopy;
          options.strategy = strategy == ShardingStrategy::kFullShard ? fsdp::ShardingStrategy::kFullShard
                                                                      : fsdp::ShardingStrategy::kShardGradOp;
          options.backward_prefetch = backward == BackwardPrefetch::kNone  ? fsdp::BackwardPrefetch::kNone
                                      : backward == BackwardPrefetch::kPre ? fsdp::BackwardPrefetch::kPre
                                                                           : fsdp::BackwardPrefetch::kPost;
          const auto found = run_third_step(c, options);
          EXPECT_GE(found.size(), 4u * GrowingNet::kBlocks);
          EXPECT_EQ(text_of_events(played(c)), text_of_events(found))
              << static_cast<int>(strategy) << static_cast<int>(backward) << limit << variant;
        }
}

TEST(PlayedOrder, OfCopiesOnSeveralHostsIsTheRuntimes) {
  for (const int accumulation : {1, 2}) {
    const PlayedCase c{{config::ShardingStrategy::kHybridShard, accumulation}, {2, 2, kRates}};
    fsdp::FsdpOptions options;
    options.strategy = fsdp::ShardingStrategy::kHybridShard;
    options.shard_group_size = 2;
    options.gather = fsdp::GatherForm::kShared;
    const auto found = run_third_step(c, options);
    EXPECT_EQ(found.size(), 4u * (GrowingNet::kBlocks + 1));
    EXPECT_EQ(text_of_events(played(c)), text_of_events(found));
  }
  const PlayedCase whole{{.strategy = config::ShardingStrategy::kNoShard}, {2, 1, kRates}};
  fsdp::FsdpOptions options;
  options.strategy = fsdp::ShardingStrategy::kNoShard;
  auto events = played(whole);
  std::erase_if(events, [](const auto& e) { return e.kind != Kind::kStartReplicas && e.kind != Kind::kWaitReplicas; });
  const auto found = run_third_step(whole, options);
  EXPECT_EQ(found.size(), 2u * (GrowingNet::kBlocks + 1));
  EXPECT_EQ(text_of_events(events), text_of_events(found));
}

}  // namespace
}  // namespace tessera
