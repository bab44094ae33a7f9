// What /proc says that ranks hold, against formulas: no rank ever holds the whole model; offloaded state leaves memory.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/program.h"
#include "support/subprocess.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/allocator.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::kMiB;

constexpr std::int64_t kDim = 512, kBlocks = 24;
constexpr std::int64_t kBlockBytes = 2 * (2 * kDim * kDim) * 4;  // two matrices in fp32: 4 MiB
constexpr std::int64_t kModelBytes = kBlocks * kBlockBytes;
constexpr std::int64_t kSlackBytes = 6 * kMiB;  // activations, allocator, libraries that are read for the first time

class WideBlock final : public nn::Layer {
 public:
  WideBlock() {
    up = register_parameter("up", at::empty({2 * kDim, kDim}));
    down = register_parameter("down", at::empty({kDim, 2 * kDim}));
  }
  std::string class_name() const override { return "WideBlock"; }
  at::Tensor up, down;

 protected:
  at::Tensor forward_impl(at::Tensor x) override { return x + at::linear(at::tanh(at::linear(x, up)), down); }
};

class DeepNet final : public nn::Layer {
 public:
  DeepNet() {
    for (std::int64_t i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<WideBlock>()));
  }
  std::string class_name() const override { return "DeepNet"; }
  std::vector<std::shared_ptr<WideBlock>> blocks;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& block : blocks) x = (*block)(x);
    return x;
  }
};

/// Proportional bytes by kind: pages that n processes share count 1/n each.
struct Held {
  std::int64_t anonymous = 0, file = 0, shared = 0;
  std::int64_t whole_file = 0;  // as if no other process mapped it: does not depend on where the peers are
  std::int64_t total() const { return anonymous + file + shared; }
};

Held held_now() {
  Held held;
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    const auto colon = line.find(':');
    const auto kib = [&] { return std::stoll(line.substr(colon + 1)) * 1024; };
    if (line.starts_with("Pss_Anon:")) held.anonymous = kib();
    if (line.starts_with("Pss_File:")) held.file = kib();
    if (line.starts_with("Pss_Shmem:")) held.shared = kib();
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssFile:")) held.whole_file = std::stoll(line.substr(8)) * 1024;
  return held;
}

/// The largest values seen from its construction on, above those at its construction.
class Watch {
 public:
  Watch() : first_(held_now()), thread_([this] { look(); }) {}
  json stop() {
    done_ = true;
    thread_.join();
    const auto end = held_now().total() - first_.total();
    return {{"end", end},
            {"anonymous", peak_.anonymous},
            {"file", peak_.file},
            {"shared", peak_.shared},
            {"total", total_},
            {"whole_file", peak_.whole_file},
            {"anonymous_and_half_file", with_half_file_}};
  }

 private:
  void look() {
    while (!done_) {
      const Held now = held_now();
      peak_.anonymous = std::max(peak_.anonymous, now.anonymous - first_.anonymous);
      peak_.file = std::max(peak_.file, now.file - first_.file);
      peak_.shared = std::max(peak_.shared, now.shared - first_.shared);
      peak_.whole_file = std::max(peak_.whole_file, now.whole_file - first_.whole_file);
      total_ = std::max(total_, now.total() - first_.total());
      with_half_file_ =
          std::max(with_half_file_, now.anonymous - first_.anonymous + (now.whole_file - first_.whole_file) / 2);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }
  Held first_, peak_;
  std::int64_t total_ = 0, with_half_file_ = 0;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void train_as_rank() {
  auto group = comm::connect();
  if (setting("MEMORY_KEPT") == "1") tensor::use_step_allocator();  // which keeps what is freed
  at::set_num_threads(1);
  auto net = std::make_unique<DeepNet>();  // at::empty: no page of it is touched
  if (setting("MEMORY_FROZEN") == "1")
    for (auto& p : net->parameters()) p.set_requires_grad(false);
  const auto x = at::ones({2, kDim}).set_requires_grad(true);
  {
    at::mm(at::ones({8, kDim}), at::ones({kDim, 2 * kDim}));
  }  // what the first product loads
  std::shared_ptr<const io::TensorSource> source = io::open_safetensors(setting("MEMORY_WEIGHTS"));
  group->barrier();
  Watch watch;
  auto sharded =
      fsdp::fully_shard(*net, group,
                        {.strategy = setting("MEMORY_KEPT") == "1" ? fsdp::ShardingStrategy::kShardGradOp
                                                                   : fsdp::ShardingStrategy::kFullShard,
                         .wrap = fsdp::wrap_classes({"WideBlock"}),
                         .gather = setting("MEMORY_FORM") == "copy" ? fsdp::GatherForm::kCopy : fsdp::GatherForm::kAuto,
                         .source = source,
                         .offload_folder = setting("MEMORY_OFFLOAD")});
  std::unique_ptr<optim::AdamW> optimizer;
  if (setting("MEMORY_OPTIMIZER") == "1") {
    optimizer = std::make_unique<optim::AdamW>(sharded->parameters(), fsdp::parameter_slices(*sharded),
                                               optim::AdamWOptions{.lr = 1e-4});
    optimizer->keep_state_in(sharded->offload_store());
  }
  for (int step = 0; step < 3; ++step) {
    (*net)(x).pow(2).mean().backward();
    if (!optimizer) continue;
    sharded->clip_grad_norm(1.0);
    optimizer->step();
    optimizer->zero_grad();
  }
  group->barrier();  // all have touched what they touch
  json report = watch.stop();
  report["planned"] = {{"shard", sharded->memory().shard_bytes}, {"offloaded", sharded->memory().offloaded_bytes}};
  std::ofstream(setting("MEMORY_REPORT") + setting("RANK")) << report.dump();
  group->barrier();
}

// Not a test of its own: what the ranks of the tests below run.
TEST(Memory, DISABLED_Rank) {
  train_as_rank();
}

class MemoryByProc : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::path(TESSERA_BINARY).parent_path() / "memory_test";  // on a disk, as TMPDIR need not be
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (std::int64_t i = 0; i < kBlocks; ++i) {
      const auto name = "block" + std::to_string(i);
      tensors.emplace_back(name + ".up", at::full({2 * kDim, kDim}, 1e-3));
      tensors.emplace_back(name + ".down", at::full({kDim, 2 * kDim}, 1e-3));
    }
    io::write_safetensors((folder_ / "model.safetensors").string(), tensors);
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  /// The reports of the ranks.
  static std::vector<json> run_ranks(int world, const test::Variables& settings) {
    static int job = 0;
    std::vector<std::unique_ptr<test::Subprocess>> ranks;
    const auto report = (folder_ / "report").string();
    for (int r = 0; r < world; ++r) {
      test::Variables variables = {{"RANK", std::to_string(r)},
                                   {"WORLD_SIZE", std::to_string(world)},
                                   {"LOCAL_WORLD_SIZE", std::to_string(world)},
                                   {"TESSERA_JOB_ID", "memory" + std::to_string(getpid()) + "." + std::to_string(job)},
                                   {"OMP_NUM_THREADS", "1"},
                                   {"MALLOC_MMAP_THRESHOLD_", "65536"},  // what is freed goes back at once
                                   {"MEMORY_WEIGHTS", (folder_ / "model.safetensors").string()},
                                   {"MEMORY_REPORT", report}};
      variables.insert(variables.end(), settings.begin(), settings.end());
      ranks.push_back(std::make_unique<test::Subprocess>(
          std::vector<std::string>{"/proc/self/exe", "--gtest_filter=Memory.DISABLED_Rank",
                                   "--gtest_also_run_disabled_tests"},
          variables));
    }
    ++job;
    std::vector<json> reports;
    for (int r = 0; r < world; ++r) {
      const auto finished = ranks[static_cast<std::size_t>(r)]->finish(std::chrono::seconds(120));
      EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
      std::ifstream in(report + std::to_string(r));
      reports.push_back(json::parse(in, nullptr, false));
    }
    return reports;
  }

  static fs::path folder_;
};
fs::path MemoryByProc::folder_;

TEST_F(MemoryByProc, NoRankEverHoldsTheWholeModel) {
  for (const auto& r : run_ranks(4, {{"MEMORY_FORM", "copy"}})) {
    // Slices and their gradients; of gathered units and of unreduced gradients two blocks and what is in flight.
    const auto planned = 2 * kModelBytes / 4 + 5 * kBlockBytes;
    EXPECT_LE(r["anonymous"].get<std::int64_t>(), planned + kSlackBytes) << r;
    EXPECT_LT(r["total"].get<std::int64_t>(), kModelBytes) << "slices, gradients and all: " << r;
    EXPECT_LE(r["file"].get<std::int64_t>(), kSlackBytes) << "weights are read, not mapped: " << r;
  }
}

TEST_F(MemoryByProc, RanksOfAHostHoldOneCopyTogether) {
  for (const auto& r : run_ranks(4, {{"MEMORY_FROZEN", "1"}}))  // of the weight file
    EXPECT_LE(r["end"].get<std::int64_t>(), kModelBytes / 4 + kSlackBytes) << r;
  for (const auto& r : run_ranks(4, {}))  // of the shared region; gradients and their slots are beside it
    EXPECT_LE(r["end"].get<std::int64_t>(), 2 * kModelBytes / 4 + 3 * kBlockBytes + kSlackBytes) << r;
}

TEST_F(MemoryByProc, OffloadingLeavesGradientsAndTwoUnitsInMemory) {
  const auto in_memory = run_ranks(2, {{"MEMORY_OPTIMIZER", "1"}});
  const auto on_disk = run_ranks(2, {{"MEMORY_OPTIMIZER", "1"}, {"MEMORY_OFFLOAD", folder_.string()}});
  for (int rank = 0; rank < 2; ++rank) {
    const auto &a = in_memory[static_cast<std::size_t>(rank)], &b = on_disk[static_cast<std::size_t>(rank)];
    const auto shard = kModelBytes / 2;
    EXPECT_EQ(b["planned"]["shard"].get<std::int64_t>(), shard);
    EXPECT_EQ(b["planned"]["offloaded"].get<std::int64_t>(), kModelBytes + 64 + 2 * shard) << "region, two moments";
    EXPECT_GE(a["total"].get<std::int64_t>(), 4 * shard) << "slices, gradients, two moments: " << a;
    EXPECT_LE(b["anonymous"].get<std::int64_t>(), shard + kSlackBytes) << "gradients: " << b;
    EXPECT_LE(b["shared"].get<std::int64_t>(), 3 * kBlockBytes + kSlackBytes) << "three slots for gradients: " << b;
    // Two units, whole where the peer is somewhere else, and a slice of state.
    EXPECT_LE(b["file"].get<std::int64_t>(), 3 * kBlockBytes + kSlackBytes) << b;
    EXPECT_LE(b["total"].get<std::int64_t>(), shard + 6 * kBlockBytes + kSlackBytes) << b;
  }
}

TEST_F(MemoryByProc, OnADiskKeptUnitsLeaveWhileGradientsCome) {
  for (const auto& r :
       run_ranks(2, {{"MEMORY_OPTIMIZER", "1"}, {"MEMORY_OFFLOAD", folder_.string()}, {"MEMORY_KEPT", "1"}})) {
    const auto shard = kModelBytes / 2;
    EXPECT_GE(r["whole_file"].get<std::int64_t>(), kModelBytes - 8 * kBlockBytes) << "all units after forward: " << r;
    EXPECT_GE(r["anonymous"].get<std::int64_t>(), shard - kBlockBytes) << "all gradients: " << r;
    EXPECT_LE(r["anonymous_and_half_file"].get<std::int64_t>(), shard + 4 * kBlockBytes + kSlackBytes)
        << "never both: " << r;
  }
}

TEST_F(MemoryByProc, AFrozenBaseLeavesMemoryUnitByUnit) {
  const auto mapped = run_ranks(2, {{"MEMORY_FROZEN", "1"}});
  const auto on_disk = run_ranks(2, {{"MEMORY_FROZEN", "1"}, {"MEMORY_OFFLOAD", folder_.string()}});
  for (int rank = 0; rank < 2; ++rank) {
    const auto &a = mapped[static_cast<std::size_t>(rank)], &b = on_disk[static_cast<std::size_t>(rank)];
    EXPECT_GE(a["file"].get<std::int64_t>(), kModelBytes / 2 - kSlackBytes) << "half of the file's pages: " << a;
    EXPECT_LE(b["anonymous_and_half_file"].get<std::int64_t>(), 3 * kBlockBytes + kSlackBytes) << b;
  }
}

}  // namespace
}  // namespace tessera
