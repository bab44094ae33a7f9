// What a rank holds on its GPU: the formula beside what runs measured.
#include "estimate/device_memory.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "base/upload_ring.h"
#include "estimate/estimate.h"
#include "estimate/plan_request.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

struct BenchLlama {
  std::int64_t hidden, inner, layers;
  bool tied;
};
constexpr BenchLlama k1B{2048, 8192, 16, true}, k8B{4096, 14336, 32, false};

class DeviceMemory : public testing::Test {
 protected:
  /// As bench/gpu/rows.py has them: 32 heads, 8 of keys, a vocabulary of 128256, weights in bf16.
  std::vector<ModelTensor> llama(const BenchLlama& s) {
    std::ofstream(folder_ + "/config.json")
        << R"({"model_type": "llama", "hidden_size": )" << s.hidden << R"(, "intermediate_size": )" << s.inner
        << R"(, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": )" << s.layers
        << R"(, "vocab_size": 128256, "torch_dtype": "bfloat16", "tie_word_embeddings": )"
        << (s.tied ? "true" : "false") << "}";
    return read_model_tensors(folder_);
  }
  const test::TempFolder temporary_{"device_memory"};
  const std::string& folder_ = temporary_.path();
};

PlanRequest gpu_job(std::int64_t rows, std::int64_t lora_r) {
  PlanRequest r;
  if (lora_r > 0) r.adapter = AdapterRequest{.lora_r = lora_r};
  r.ranks = 1;
  r.mixed_precision = "bf16";
  r.batch = {.rows = rows, .length = 2048};
  return r;
}

double part_of(const RankPlan& plan, const std::string& name) {
  for (const auto& p : plan.parts)
    if (name == p.what) return static_cast<double>(p.bytes);
  return 0;
}

struct MeasuredOnGpu {
  const char* what;
  BenchLlama model;
  PlanRequest request;
  double bytes;
};

// The peak of the bytes that libtorch's allocator had given out, in runs of bench/e2e/train_bench.cc on an H100
// (2026-11-27, commit 2757050: AdamW, clipping, FULL_SHARD, one process; bench/gpu/rows.py has the models).
std::vector<MeasuredOnGpu> measured_on_gpu() {
  const auto with = [](PlanRequest r, auto change) {
    change(r);
    return r;
  };
  const auto nf4 = [](PlanRequest& r) { r.packed = {.bits = 4}; };
  const auto again = [](PlanRequest& r) { r.batch.checkpointing = true; };
  return {{"1B, LoRA", k1B, gpu_job(8, 16), 17.405462016e9},
          {"1B, LoRA with dropout", k1B,
           with(gpu_job(8, 16), [](PlanRequest& r) { r.adapter->peft_args = "lora_dropout=0.05"; }), 17.67442176e9},
          {"1B, all weights", k1B, gpu_job(8, 0), 31.269446656e9},
          {"1B, NF4 and LoRA", k1B, with(gpu_job(8, 16), nf4), 16.008889856e9},
          {"1B, all weights, two ranks (commit 6f8a51b)", k1B, with(gpu_job(2, 0), [](PlanRequest& r) { r.ranks = 2; }),
           13.35536128e9},
          {"8B, LoRA", k8B, gpu_job(4, 16), 42.503906816e9},
          {"8B, LoRA, checkpointed", k8B, with(gpu_job(4, 16), again), 20.565421056e9},
          {"8B, NF4 and LoRA, checkpointed", k8B, with(with(gpu_job(4, 16), nf4), again), 10.56620032e9}};
}

TEST_F(DeviceMemory, IsWhatRunsOnAGpuMeasured) {
  for (const auto& m : measured_on_gpu()) {
    const auto plan = device_plan_for(m.request, llama(m.model));
    const double tolerance = m.request.ranks == 1 ? 0.005 : 0.03;
    EXPECT_NEAR(static_cast<double>(plan.total()), m.bytes, tolerance * m.bytes) << m.what << ", in " << plan.phase;
  }
}

TEST_F(DeviceMemory, CountsWhatABlocksBackwardWorksWith) {
  for (const auto& m : measured_on_gpu()) {
    const auto plan = device_plan_for(m.request, llama(m.model));
    if (plan.phase != std::string("backward")) continue;
    const auto working = part_of(plan, "a block's backward");
    // The gradient of what the feed-forward layer's last projection is given, that again, and the gradients of gate and
    // up; the gradient that comes in, and the block's output.
    const auto tokens = static_cast<double>(m.request.batch.tokens());
    const auto products = 2 * tokens * static_cast<double>(4 * m.model.inner + 2 * m.model.hidden);
    const auto dropped = m.what == std::string("1B, LoRA with dropout") ? 2 * tokens * 8192 : 0;
    EXPECT_NEAR(working, products + dropped, 0.01 * products) << m.what;
    EXPECT_LT(static_cast<double>(plan.total()) - working, 0.98 * m.bytes)
        << m.what << ": it is more than the tolerance";
  }
}

// No GPU has measured a mixture yet.
TEST_F(DeviceMemory, OfAMixtureWorksOnAllExpertsTogether) {
  constexpr std::int64_t kHidden = 1024, kInner = 512, kExperts = 8, kPerToken = 4;
  std::ofstream(folder_ + "/config.json")
      << R"({"model_type": "qwen3_moe", "hidden_size": 1024, "moe_intermediate_size": 512, "intermediate_size": 64,
             "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 2,
             "num_experts": 8, "num_experts_per_tok": 4, "decoder_sparse_step": 1, "vocab_size": 1024})";
  const auto tensors = read_model_tensors(folder_);
  const auto shape = device_shape(tensors);
  EXPECT_EQ(shape.expert_rows, kPerToken);
  EXPECT_EQ(shape.largest_matrix, kExperts * kInner * kHidden);
  // Gradients of gate, up and of their inputs, of each row; the gradient that comes in, and the block's output.
  const auto request = gpu_job(4, 8);
  const double tokens = 4 * 2048, rows = tokens * kPerToken;
  EXPECT_NEAR(part_of(device_plan_for(request, tensors), "a block's backward"),
              2 * (rows * 2 * (kInner + kHidden) + tokens * 2 * kHidden), 1e6);
}

TEST_F(DeviceMemory, OfAHeadThatTrainsCountsLogitsAndASumInThirtyTwoBits) {
  auto request = gpu_job(8, 0);
  const auto plan = device_plan_for(request, llama(k1B));
  EXPECT_EQ(plan.phase, std::string("forward"));
  EXPECT_NEAR(part_of(plan, "logits and their gradient"),
              2.0 * 8 * 2048 / 4 * 128256 + 4.0 * 128256 * 2048 + 4 * 2.0 * 8 * 2048 * 2048, 0.02e9);
  EXPECT_EQ(part_of(plan, "gathered units"), 2 * (128256 * 2048 + 2048)) << "the root, cast";
  EXPECT_EQ(part_of(plan, "optimizer state"), 2 * part_of(plan, "weights that train"));
  request.strategy = config::ShardingStrategy::kNoShard;
  const auto whole = device_plan_for(request, llama(k1B));
  EXPECT_EQ(2 * part_of(whole, "gathered units"), part_of(whole, "weights that train"))
      << "all of it is cast, and stays";
  request.mixed_precision = "no";
  EXPECT_EQ(part_of(device_plan_for(request, llama(k1B)), "gathered units"), 0) << "units compute with the masters";
}

TEST_F(DeviceMemory, HoldsGradientsOfEarlierForwards) {
  auto request = gpu_job(8, 0);
  const auto tensors = llama(k1B);
  const char* name = "gradients of earlier forwards";
  const auto one = device_plan_for(request, tensors).total();
  EXPECT_EQ(part_of(device_plan_for(request, tensors), name), 0);
  request.batch.accumulation = Accumulation::kSharded;
  const auto several = device_plan_for(request, tensors);
  EXPECT_EQ(part_of(several, name), part_of(several, "weights that train")) << "summed as they come, in 32 bits";
  EXPECT_EQ(several.total(), one + static_cast<std::int64_t>(part_of(several, name)));
  request.ranks = 4;
  const auto sums = device_plan_for(request, tensors);
  EXPECT_EQ(part_of(sums, name), part_of(sums, "weights that train"));
  request.batch.accumulation = Accumulation::kUnsharded;
  const auto whole = device_plan_for(request, tensors);
  EXPECT_EQ(part_of(whole, name), 4 * part_of(whole, "weights that train") / 2) << "whole on each rank, in bf16";
  request.offload_params = true;
  EXPECT_EQ(part_of(device_plan_for(request, tensors), name), 0);
  const auto here = host_plan_for(request, tensors);
  EXPECT_EQ(part_of(here, name), 0) << "summed over the ranks of the host as they come";
  request.batch.accumulation = Accumulation::kSharded;
  EXPECT_EQ(host_plan_for(request, tensors).total(), here.total());
  request.batch.accumulation = Accumulation::kUnsharded;
  request.hosts = 2;
  EXPECT_GT(part_of(host_plan_for(request, tensors), name), 0) << "where slices leave room for them";
}

TEST_F(DeviceMemory, OfAHeadThatNeedsThemAllLogitsAreThere) {
  const auto request = gpu_job(8, 16);
  auto tensors = llama(k1B);
  const auto in_parts = part_of(device_plan_for(request, tensors), "logits and their gradient");
  tensors.push_back({"lm_head.bias", {128256}, "BF16"});
  EXPECT_EQ(part_of(device_plan_for(request, tensors), "logits and their gradient"), in_parts);
  tensors.push_back({"lm_head.weight", {128256, 2048}, "", /*packed_bytes=*/128256 * 2048 / 2});
  const auto plan = device_plan_for(request, tensors);
  EXPECT_EQ(plan.phase, std::string("forward"));
  EXPECT_EQ(part_of(plan, "logits and their gradient"), 8 * 2048 * (12.0 * 128256 + 2 * 4 * 2048));
  EXPECT_LT(in_parts, 2e9);
}

TEST_F(DeviceMemory, WithoutActivationsEndsWithAllGradientsAndThatOfTheTable) {
  auto request = gpu_job(1, 0);
  request.batch.length = 0;
  request.mixed_precision = "no";
  const auto plan = device_plan_for(request, llama(k8B));
  const auto numel = part_of(plan, "weights that train") / 4;
  constexpr double kTable = 4.0 * 128256 * 4096;
  EXPECT_NEAR(static_cast<double>(plan.total()), 16 * numel + kTable + (64 << 20), 1e6);
  EXPECT_EQ(part_of(plan, "gradients") + part_of(plan, "gradient of the head"), 4 * numel + kTable);
  request.adapter.emplace();
  const auto adapter = device_plan_for(request, llama(k8B));
  EXPECT_EQ(adapter.phase, std::string("update"));
  EXPECT_EQ(part_of(adapter, "gradients"), part_of(adapter, "weights that train"));
}

TEST_F(DeviceMemory, OffloadedHoldsCopiesOfTwoUnitsAndOfTheRootAlone) {
  auto request = gpu_job(4, 16);
  request.batch.checkpointing = request.offload_params = true;
  request.ranks = 2;
  const auto tensors = llama(k8B);
  const auto plan = device_plan_for(request, tensors);
  for (const char* absent : {"weights that train", "frozen weights", "optimizer state"})
    EXPECT_EQ(part_of(plan, absent), 0) << absent;
  const double block = 218112000 + 16 * (2 * 8192 + 2 * 5120 + 3 * 18432.0), root = 2 * 128256 * 4096.0 + 4096;
  EXPECT_EQ(part_of(plan, "gathered units"), 2 * (2 * block + root));
  EXPECT_EQ(part_of(plan, "gradients"), 2 * 2 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432.0));
  request.offload_params = false;
  EXPECT_EQ(part_of(plan, "a block's backward"), part_of(device_plan_for(request, tensors), "a block's backward"));
  request.offload_params = true;
  const auto host = host_plan_for(request, tensors);
  EXPECT_EQ(part_of(host, "activations kept for backward"), 0) << "they are on the GPU";
  request.batch.length = 0;
  EXPECT_EQ(part_of(host, "pinned memory on the way to the GPU"), kUploadRingBytes) << "of frozen weights";
  EXPECT_EQ(host.total(), plan_for(request, tensors).total() + kUploadRingBytes);
  request.adapter.reset();
  EXPECT_EQ(host_plan_for(request, tensors).total(), plan_for(request, tensors).total());
}

TEST_F(DeviceMemory, AnOptimizerOfTheCpuHasItsStateInTheHostsMemory) {
  auto request = gpu_job(4, 0);
  const auto tensors = llama(k1B);
  double trained = 0;
  for (const auto& t : tensors) trained += 4.0 * static_cast<double>(t.numel());
  const double matrix = 4.0 * 128256 * 2048;
  EXPECT_EQ(host_plan_for(request, tensors).total(), matrix) << "of AdamW's all is on the GPU";
  EXPECT_EQ(part_of(device_plan_for(request, tensors), "optimizer state"), 2 * trained);
  request.optim = "stable_adamw";
  EXPECT_EQ(part_of(device_plan_for(request, tensors), "optimizer state"), 0);
  for (const int ranks : {1, 2}) {
    request.ranks = ranks;
    EXPECT_EQ(host_plan_for(request, tensors).total(), 4 * trained / ranks);
  }
}

TEST_F(DeviceMemory, OfAFewTokensAPackedMatrixUnpackedIsTheMost) {
  auto request = gpu_job(1, 16);
  request.batch.length = 16;
  const auto tensors = llama(k8B);
  const auto dense = part_of(device_plan_for(request, tensors), "a block's backward");
  request.packed = {.bits = 4};
  const auto packed = part_of(device_plan_for(request, tensors), "a block's backward");
  EXPECT_LT(dense, 5e6);
  EXPECT_NEAR(packed, 2.0 * 4096 * 14336, 5e6);
}

class DeviceTables : public DeviceMemory {
 protected:
  DeviceTables() { tensors_ = llama(k1B); }
  std::string printed(std::vector<std::string> args) {
    args.insert(args.begin(), {folder_, "--mixed_precision", "bf16"});
    std::ostringstream out;
    try {
      print_estimate(*parse_estimate(args, out), tensors_, out);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return out.str();
  }
  std::vector<ModelTensor> tensors_;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(DeviceTables, SayMemoryOfTheGpuAndOfTheHostApart) {
  const auto text = printed({"--device", "cuda", "--lora_r", "16", "--per_device_train_batch_size", "8",
                             "--max_seq_len", "2048", "--device_memory", "17GB"});
  EXPECT_TRUE(contains(text, "Peak of a rank's GPU in fine-tuning here: adamw_torch, 1 rank(s)")) << text;
  EXPECT_TRUE(contains(text, "Peak of a rank's host memory in fine-tuning here")) << text;
  EXPECT_TRUE(contains(text, "LoRA, r 16: 16.21 GiB of a rank's GPU, more than the 17GB of --device_memory")) << text;
  EXPECT_FALSE(contains(text, "offloaded to a disk")) << "which goes with offloaded parameters alone";
  EXPECT_FALSE(contains(printed({"--device", "cuda"}), "--device_memory")) << "no verdict is asked for";
}

TEST_F(DeviceTables, WithoutAGpuAreThoseOfBefore) {
  const auto text = printed({});
  EXPECT_EQ(text, printed({"--device", "cpu"}));
  EXPECT_EQ(text, printed({"--device", "auto"}));
  EXPECT_FALSE(contains(text, "GPU")) << text;
}

TEST_F(DeviceMemory, SeveralRanksHoldSlicesAndWholeUnitsWhileTheyCompute) {
  auto request = gpu_job(1, 16);
  const auto tensors = llama(k8B);
  const auto one = device_plan_for(request, tensors);
  request.ranks = 4;
  const auto four = device_plan_for(request, tensors);
  for (const char* sliced : {"frozen weights", "weights that train", "optimizer state"})
    EXPECT_NEAR(4 * part_of(four, sliced), part_of(one, sliced), 8) << sliced;
  EXPECT_GT(part_of(four, "gathered units"), 2.0 * (218112000 + 128256 * 4096)) << "frozen weights, too";
  request.strategy = config::ShardingStrategy::kNoShard;
  EXPECT_EQ(part_of(device_plan_for(request, tensors), "frozen weights"), part_of(one, "frozen weights"));
}

TEST_F(DeviceTables, OfSeveralRanks) {
  EXPECT_TRUE(contains(printed({"--device", "cuda", "--num_processes", "2"}), "2 rank(s)"));
  const auto text = printed({"--device", "cuda", "--num_processes", "2", "--fsdp_offload_params", "true"});
  EXPECT_TRUE(contains(text, "2 rank(s)") && contains(text, "all weights, offloaded to a disk")) << text;
  EXPECT_TRUE(contains(printed({"--device_memory", "80GB"}), "no effect without --device cuda"));
  EXPECT_TRUE(contains(printed({"--device", "cuda", "--device_memory", "80 cows"}), "--device_memory expects a size"));
}

}  // namespace
}  // namespace tessera::estimate
