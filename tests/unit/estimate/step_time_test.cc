// Step times where they are known in closed form, and how they change with what they depend on.
#include "estimate/step_time.h"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <sstream>

#include "estimate/estimate.h"
#include "estimate/hosts_table.h"
#include "estimate/rate_text.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

using config::ShardingStrategy;

constexpr double kBlockNumel = 1e8;
constexpr int kBlocks = 40;

/// Equal blocks that compute, gather and reduce, below a root that does nothing.
StepShape equal_blocks(double forward_flops = 1e12) {
  StepShape shape;
  for (int i = 0; i < kBlocks; ++i)
    shape.blocks.push_back({.name = "layers." + std::to_string(i),
                            .forward = {forward_flops, 0},
                            .backward = {2 * forward_flops, 0},
                            .gathered = {static_cast<std::int64_t>(4 * kBlockNumel)},
                            .reduced = static_cast<std::int64_t>(kBlockNumel)});
  return shape;
}

/// Memory costs nothing, messages arrive at once.
Rates rates(double link) {
  return {.flops = 1e12, .memory = 1e30, .link = link, .latency = 0};
}

StepTime full_shard(const StepShape& shape, const Cluster& cluster) {
  return play_step(shape, {}, cluster);
}

// 40 blocks of 1 s forward and 2 s backward.
constexpr double kComputation = kBlocks * 3.0;

TEST(StepTime, WithoutLinkIsComputation) {
  for (const int ranks : {1, 8})
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                                ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard}) {
      const auto time = play_step(equal_blocks(), {strategy}, {1, ranks, rates(1)});
      EXPECT_NEAR(time.seconds, kComputation, 1e-9) << ranks;
      EXPECT_EQ(time.link_bytes, 0);
    }
}

/// Bytes over the rate: of (H - 1) / H of what is gathered twice and reduced once, four bytes an element.
TEST(StepTime, OnAnInfinitelySlowLinkIsThatOfItsBytes) {
  for (const int hosts : {2, 4, 128}) {
    const double bytes = 3.0 * kBlocks * 4 * kBlockNumel * (hosts - 1) / hosts;
    const auto time = full_shard(equal_blocks(), {hosts, 1, rates(1e3)});
    EXPECT_NEAR(time.link_bytes / bytes, 1, 1e-9) << hosts;
    EXPECT_NEAR(time.seconds / (bytes / 1e3), 1, 1e-3) << hosts;
  }
}

/// Neither longer than the longer of computation and bytes but for the first unit, which nothing hides, and the last
/// two reductions.
TEST(StepTime, OverlapsToTheLongerOfComputationAndBytes) {
  const double bytes = 3.0 * kBlocks * 4 * kBlockNumel / 2;
  for (const double ratio : {0.05, 0.3, 0.9, 1.1, 3.0, 20.0}) {
    const double link = bytes / (ratio * kComputation);
    const double longer = std::max(kComputation, bytes / link), a_unit = longer / kBlocks;
    const auto time = full_shard(equal_blocks(), {2, 1, rates(link)});
    EXPECT_GE(time.seconds, longer - 1e-9) << ratio;
    // Forward and backward have their own ratios of bytes to computation.
    const double forward = std::max(kBlocks * 1.0, bytes / 3 / link),
                 backward = std::max(kBlocks * 2.0, bytes / 1.5 / link);
    EXPECT_LE(time.seconds, forward + backward + 3 * a_unit) << ratio;
    EXPECT_GE(time.seconds, forward + backward - 3 * a_unit) << ratio;
  }
}

TEST(StepTime, WithoutPrefetchIsTheSumOfGathersAndComputation) {
  const Schedule none{.backward_prefetch = config::BackwardPrefetch::kNone, .forward_prefetch = false};
  const Cluster cluster{2, 1, rates(1e9)};
  const double gathers = 2.0 * kBlocks * 4 * kBlockNumel / 2 / 1e9;
  auto frozen = equal_blocks();  // no reductions
  for (auto& block : frozen.blocks) block.reduced = 0;
  EXPECT_NEAR(play_step(frozen, none, cluster).seconds, kComputation + gathers, 1e-6);
  EXPECT_LT(play_step(frozen, {}, cluster).seconds, kComputation + gathers / 2);
}

TEST(StepTime, LatencyCountsForEachOperation) {
  auto cluster = Cluster{2, 1, rates(1e30)};
  const Schedule none{.backward_prefetch = config::BackwardPrefetch::kNone, .forward_prefetch = false};
  auto frozen = equal_blocks();
  for (auto& block : frozen.blocks) block.reduced = 0;
  cluster.rates.latency = 1;
  // Three messages for each of the gathers and of three sums of single numbers.
  EXPECT_NEAR(play_step(frozen, none, cluster).seconds, kComputation + 3 * (2 * kBlocks + 3), 1e-6);
}

TEST(StepTime, GrowsWithHostsAndLatencyAndShrinksWithRates) {
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                              ShardingStrategy::kHybridShard, ShardingStrategy::kNoShard}) {
    const Schedule schedule{strategy};
    const auto shape = equal_blocks(2e11);
    const auto of = [&](int hosts, const Rates& r) { return play_step(shape, schedule, {hosts, 1, r}).seconds; };
    Rates r{.flops = 1e12, .memory = 1e10, .link = 1e9, .latency = 1e-4};
    for (int hosts = 1; hosts < 1024; hosts *= 2) EXPECT_LE(of(hosts, r), of(2 * hosts, r) + 1e-9) << hosts;
    double last = 1e300;
    for (r.link = 1e7; r.link < 1e12; r.link *= 2) {
      EXPECT_LE(of(8, r), last + 1e-9) << r.link;
      last = of(8, r);
    }
    r.link = 1e9;
    last = 0;
    for (r.latency = 1e-6; r.latency < 1; r.latency *= 4) {
      EXPECT_GE(of(8, r), last - 1e-9) << r.latency;
      last = of(8, r);
    }
    r.latency = 1e-4;
    last = 1e300;
    for (r.flops = 1e10; r.flops < 1e15; r.flops *= 4) {
      EXPECT_LE(of(8, r), last + 1e-9) << r.flops;
      last = of(8, r);
    }
  }
}

/// Copies inside hosts move two thirds of the bytes, and none during the forward; without a fast enough link that is
/// what a step takes.
TEST(StepTime, HybridMovesTwoThirdsOfWhatFullShardMoves) {
  const Cluster slow{4, 1, rates(1e3)};
  const auto full = full_shard(equal_blocks(), slow),
             hybrid = play_step(equal_blocks(), {ShardingStrategy::kHybridShard}, slow);
  EXPECT_NEAR(hybrid.link_bytes / full.link_bytes, 2.0 / 3, 1e-9);
  EXPECT_NEAR(hybrid.seconds / full.seconds, 2.0 / 3, 1e-3);
  // With several ranks a host FULL_SHARD's sums of fp32 pass along a chain, and bring a host the whole vector.
  const Cluster eight{4, 8, rates(1e3)};
  const double vector = kBlocks * 4 * kBlockNumel;
  EXPECT_NEAR(full_shard(equal_blocks(), eight).link_bytes, vector * (2 * 3.0 / 4 + 1 + 1.0 / 4), 1);
  EXPECT_NEAR(play_step(equal_blocks(), {ShardingStrategy::kHybridShard}, eight).link_bytes, vector * 2 * 3 / 4, 1);
}

TEST(StepTime, AccumulationReducesOnce) {
  const Cluster slow{2, 1, rates(1e3)};
  const double vector_seconds = kBlocks * 4 * kBlockNumel / 2 / 1e3;
  const auto of = [&](ShardingStrategy strategy, int accumulation) {
    return play_step(equal_blocks(), {strategy, accumulation}, slow).seconds / vector_seconds;
  };
  EXPECT_NEAR(of(ShardingStrategy::kFullShard, 4), 4 * 2 + 1, 0.01);
  EXPECT_NEAR(of(ShardingStrategy::kShardGradOp, 4), 4 * 1 + 1, 0.01);
  EXPECT_NEAR(of(ShardingStrategy::kHybridShard, 4), 2, 0.01) << "reduce and gather of the sum";
  EXPECT_NEAR(play_step(equal_blocks(), {ShardingStrategy::kFullShard, 4}, {1, 1, rates(1)}).seconds, 4 * kComputation,
              1e-9);
  const Schedule each{.accumulation = 4, .sync_each_batch = true};
  EXPECT_NEAR(play_step(equal_blocks(), each, slow).seconds / vector_seconds, 4 * (2 + 1), 0.01);
}

TEST(StepTime, CheckpointingRunsForwardsAgainAndGathersNoMore) {
  auto shape = equal_blocks();
  const Cluster cluster{2, 1, rates(1e12)};
  const auto kept = full_shard(shape, cluster);
  shape.checkpointing = true;
  const auto again = full_shard(shape, cluster);
  EXPECT_NEAR(again.seconds - kept.seconds, kBlocks * 1.0, 1e-3);
  EXPECT_EQ(again.link_bytes, kept.link_bytes);
}

TEST(StepTime, CommunicationCostsFromTheNumberOfHostsThatIsFound) {
  // Bytes grow as (H - 1) / H: with half of the vectors' time on two hosts, two thirds on three, ...
  const double all = 3.0 * kBlocks * 4 * kBlockNumel;
  const auto shape = equal_blocks();
  const auto first = [&](double link, int hosts) {
    return where_communication_costs(shape, {}, {hosts, 1, rates(link)});
  };
  // Backward moves two thirds of the bytes beside two thirds of the computation: it costs where all * (H - 1) / H /
  // link is 1.05 times the computation or so.
  const auto found = first(all * 0.7 / kComputation, 64);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->hosts, 4) << "of 2: 0.71, of 3: 0.95, of 4: 1.07 times computation";
  EXPECT_GT(found->time.longest.seconds, 0);
  EXPECT_FALSE(first(all * 100 / kComputation, 64));
  EXPECT_EQ(first(all / 100 / kComputation, 1024)->hosts, 2);
}

class StepShapes : public testing::Test {
 protected:
  std::vector<ModelTensor> llama(const std::string& sizes) {
    std::ofstream(folder_ + "/config.json") << R"({"model_type": "llama", "torch_dtype": "bfloat16", )" << sizes << "}";
    return read_model_tensors(folder_);
  }
  std::vector<ModelTensor> llama_405b() {
    return llama(R"("hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128,
        "num_key_value_heads": 8, "num_hidden_layers": 126, "vocab_size": 128256)");
  }
  const test::TempFolder temporary_{"step_shapes"};
  const std::string& folder_ = temporary_.path();
};

TEST_F(StepShapes, CountWhatABlockComputesGathersAndReduces) {
  const auto tensors = llama(R"("hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
      "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 32000)");
  PlanRequest request;
  request.batch = {2, 128, true};
  const auto all = step_shape(request, tensors);
  ASSERT_EQ(all.blocks.size(), 3u);
  const double block = 512 * (512 + 256 + 256 + 512) + 3 * 512 * 1024 + 2 * 512, tokens = 256, head = 32000.0 * 512;
  const double scores = 2 * tokens * 128 * 512;
  EXPECT_DOUBLE_EQ(all.blocks[1].forward.flops, 2 * tokens * block + scores);
  EXPECT_DOUBLE_EQ(all.blocks[1].backward.flops, 4 * tokens * block + 2.5 * scores);
  EXPECT_EQ(all.blocks[1].gathered, std::vector{static_cast<std::int64_t>(4 * block)});
  EXPECT_EQ(all.blocks[1].reduced, static_cast<std::int64_t>(block));
  EXPECT_DOUBLE_EQ(all.root.forward.flops, 2 * tokens * head);
  EXPECT_DOUBLE_EQ(all.root.backward.flops, 4 * tokens * head);
  EXPECT_EQ(all.root.heads, std::vector{static_cast<std::int64_t>(head)});
  EXPECT_EQ(all.root.tables, std::vector{static_cast<std::int64_t>(head)});
  EXPECT_EQ(all.root.reduced, 512) << "the last norm";
  EXPECT_DOUBLE_EQ(step_flops(all), 3 * (8 * tokens * block + 4.5 * scores) + 6 * tokens * head);

  // What is stored as it is computed with is mapped from the file; adapters alone move, and gradients of weights are
  // not made.
  request.adapter.emplace();
  request.adapter->lora_r = 4;
  request.mixed_precision = "bf16";
  const auto lora = step_shape(request, tensors);
  const double added = 4 * ((512 + 512) * 2 + (512 + 256) * 2 + (512 + 1024) * 3);
  EXPECT_EQ(lora.blocks[1].gathered, std::vector{static_cast<std::int64_t>(2 * added)});
  EXPECT_EQ(lora.blocks[1].reduced, static_cast<std::int64_t>(added));
  EXPECT_DOUBLE_EQ(lora.blocks[1].backward.flops, 2 * tokens * (block + 2 * added) + 2.5 * scores);
  EXPECT_DOUBLE_EQ(lora.root.backward.flops, 2 * tokens * head);
  request.packed = {.bits = 4};
  EXPECT_GT(step_shape(request, tensors).blocks[1].gathered[1], block / 2) << "packed while they are read: in slices";
}

TEST_F(StepShapes, AModelOf405BillionOn1024RanksIsAnsweredWithinASecond) {
  llama_405b();
  const auto start = std::clock();  // the processor's time: other programs run beside tests
  std::ostringstream out;
  const auto options =
      parse_estimate({folder_, "--hosts", "128", "--ranks_per_host", "8", "--mixed_precision", "bf16",
                      "--gradient_checkpointing", "--max_seq_length", "4096", "--link", "25GB/s", "--latency", "5us",
                      "--flops_per_rank", "1TFLOP/s", "--memory_rate_per_rank", "10GB/s"},
                     out);
  print_estimate(*options, read_model_tensors(folder_), out);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 1.0);
  const std::string text = out.str();
  for (const char* row : {"│  1  │  8  │", "│ 64  │ 512 │", "│ 128 │1024 │", "FULL_SHARD: ", "HYBRID_SHARD: "})
    EXPECT_NE(text.find(row), std::string::npos) << row << text;
}

TEST(RateText, IsReadAndRefused) {
  EXPECT_DOUBLE_EQ(parse_byte_rate("25GB/s", "link"), 25e9);
  EXPECT_DOUBLE_EQ(parse_byte_rate("100 Gbit/s", "link"), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_byte_rate("1.5GiB/s", "link"), 1.5 * (1 << 30));
  EXPECT_DOUBLE_EQ(parse_flop_rate("1.5TFLOP/s", "flops_per_rank"), 1.5e12);
  EXPECT_DOUBLE_EQ(parse_seconds("5us", "latency"), 5e-6);
  for (const char* bad : {"", "25", "25GB", "GB/s", "-1GB/s", "0GB/s", "nanGB/s", "infGB/s", "1e300TB/s", "25gb/s x"})
    EXPECT_THROW(parse_byte_rate(bad, "link"), ConfigError) << bad;
  EXPECT_THROW(parse_flop_rate("1TB/s", "flops_per_rank"), ConfigError);
  EXPECT_THROW(parse_seconds("5", "latency"), ConfigError);
  EXPECT_EQ(rate_text(25e9, "B/s"), "25 GB/s");
}

TEST(ClusterFlags, ThatContradictEachOtherAreRefused) {
  const auto refused = [](std::vector<std::string> args) {
    args.insert(args.begin(), "model");
    std::ostringstream out;
    try {
      (void)parse_estimate(args, out);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(refused({"--num_processes", "4", "--ranks_per_host", "2"}), "exclude each other"));
  EXPECT_TRUE(has(refused({"--ranks_per_host", "0"}), "at least 1"));
  EXPECT_TRUE(has(refused({"--hosts", "2000000000", "--ranks_per_host", "2"}), "million"));
  EXPECT_TRUE(has(refused({"--link", "25"}), "a rate like 25GB/s"));
  EXPECT_TRUE(has(refused({"--link", "25GB/s", "--max_seq_length", "0"}), "--max_seq_length"));
  EXPECT_TRUE(has(refused({"--gradient_accumulation_steps", "0"}), "at least 1"));
  EXPECT_TRUE(has(refused({"--gradient_accumulation_steps", "16385", "--link", "25GB/s"}), "at most 16,384"));
  EXPECT_EQ(refused({"--gradient_accumulation_steps", "16385"}), "") << "no step is played";
  EXPECT_TRUE(has(refused({"--num_processes", "1000001", "--hosts", "1000001"}), "1 to 1,000,000"));
  for (const char* length : {"16777217", "4611686018427387904"})
    EXPECT_TRUE(has(refused({"--max_seq_length", length}), "16,777,216 tokens are the most")) << length;
  EXPECT_TRUE(has(refused({"--max_seq_length", "16777216", "--per_device_train_batch_size", "2"}), "2 row(s)"));
  EXPECT_EQ(refused({"--max_seq_length", "16777216"}), "");
  EXPECT_TRUE(has(refused({"--lora_r", "1048577"}), "--lora_r must be 1 to 1,048,576"));
  EXPECT_EQ(refused({"--hosts", "3", "--ranks_per_host", "2", "--link", "25GB/s"}), "");
}

}  // namespace
}  // namespace tessera::estimate
