// --device cuda, on machines that lack something for it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <set>

#include "comm/device/device_identity.h"
#include "support/program.h"
#include "tasks/fsdp_options.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::tasks {
namespace {

/// Of a host with one usable GPU, and what its rank asks for.
struct Case {
  config::AccelerateConfig config;
  GpuFacts facts{.built = true, .count = 1, .driver = "NVRM version: 580.95"};

  std::string refusal(const std::string& device = "cuda") const {
    try {
      return "none: " + compute_device(device, config, facts).str();
    } catch (const ConfigError& e) {
      EXPECT_EQ(e.key, "device");
      EXPECT_SAYS(std::string(e.what()), "--device cpu");
      return e.what();
    }
  }
};

TEST(ComputeDevice, CpuIsTheCpuWhateverThereIs) {
  EXPECT_TRUE(compute_device("cpu", {}, Case().facts).is_cpu());
}

TEST(ComputeDevice, AutoTakesAGpuWhereThereIsOne) {
  Case c;
  EXPECT_EQ(c.refusal("auto"), "none: cuda:0");
  c.config.use_cpu = true;
  EXPECT_EQ(c.refusal("auto"), "none: cpu");
  c.config.use_cpu = false;
  c.facts.built = false;
  EXPECT_EQ(c.refusal("auto"), "none: cpu");
  c.facts = {.built = true, .count = 0, .driver = ""};
  EXPECT_EQ(c.refusal("auto"), "none: cpu");
}

TEST(ComputeDevice, AutoDoesNotFallBackToTheCpuInSilence) {
  Case c;
  c.facts.count = 0;
  EXPECT_SAYS(c.refusal("auto"), "libtorch finds no GPU that it can use");
}

TEST(ComputeDevice, IsTheGpuOfTheRankOnItsHost) {
  Case c;
  EXPECT_EQ(c.refusal(), "none: cuda:0");
  c.config.fsdp.offload_params = true;
  c.facts.count = 4;
  c.facts.local_rank = 2;
  EXPECT_EQ(c.refusal(), "none: cuda:2");
}

/// srun --gpus-per-task shows each task GPUs of its own, numbered from 0.
TEST(ComputeDevice, IsTheOnlyGpuThatTheRankSees) {
  Case c;
  c.facts.local_rank = 3;
  EXPECT_EQ(c.refusal(), "none: cuda:0");
  c.facts.count = 2;
  EXPECT_EQ(c.refusal(), "none: cuda:1");
}

TEST(ComputeDevice, RefusesSettingsThatForbidGpus) {
  Case c;
  c.config.use_cpu = true;
  EXPECT_SAYS(c.refusal(), "use_cpu: true");
}

TEST(ComputeDevice, RefusesALibtorchWithoutCuda) {
  Case c;
  c.facts = {};
  EXPECT_SAYS(c.refusal(), "built without CUDA");
}

TEST(ComputeDevice, RefusesAMachineWithoutADriver) {
  Case c;
  c.facts.count = 0;
  c.facts.driver = "";
  EXPECT_SAYS(c.refusal(), "no NVIDIA driver is loaded");
}

TEST(ComputeDevice, NamesTheDriverUnderWhichNoGpuIsUsable) {
  Case c;
  c.facts.count = 0;
  EXPECT_SAYS(c.refusal(), "'NVRM version: 580.95'");
  EXPECT_SAYS(c.refusal(), "CUDA_VISIBLE_DEVICES");
}

/// What ranks are told whose GPU 0 is each the one with this identity.
std::string refusal_of(const std::vector<std::string>& gpu_of_rank) {
  static thread_local std::string own;
  comm::use_device_identity([](at::Device) { return own; });
  std::mutex mutex;
  std::set<std::string> said;
  comm::run_threads(static_cast<int>(gpu_of_rank.size()), [&](std::shared_ptr<comm::Communicator> group) {
    own = gpu_of_rank[static_cast<std::size_t>(group->rank())];
    std::string text = "none";
    try {
      require_own_devices({at::kCUDA, 0}, *group);
    } catch (const ConfigError& e) {
      text = e.what();
    }
    const std::lock_guard lock(mutex);
    said.insert(text);
  });
  comm::use_device_identity(nullptr);
  EXPECT_EQ(said.size(), 1u) << "all ranks say the same";
  return *said.begin();
}

TEST(OwnDevices, AreToldApartByTheirIdentityNotTheirNumber) {
  EXPECT_EQ(refusal_of({"one", "two", "three"}), "none");
}

TEST(OwnDevices, RanksOfAHostThatWouldShareOneAreRefusedAndNamed) {
  const auto said = refusal_of({"one", "two", "two"});
  EXPECT_SAYS(said, "ranks 1, 2 of a host have one GPU between them (two)");
  EXPECT_SAYS(said, "--gpus-per-task=1");
  EXPECT_SAYS(said, "TESSERA_SHARE_GPUS=1");
}

TEST(OwnDevices, RanksShareOneWhereTheyMay) {
  ::setenv("TESSERA_SHARE_GPUS", "1", 1);
  EXPECT_EQ(refusal_of({"one", "one"}), "none");
  ::unsetenv("TESSERA_SHARE_GPUS");
}

TEST(OwnDevices, TheCpuIsForAll) {
  comm::run_threads(2, [](std::shared_ptr<comm::Communicator> group) { require_own_devices(at::kCPU, *group); });
}

TEST(ComputeDevice, LooksAtThisMachine) {
  const auto facts = gpu_facts();
  if (facts.count > 0) GTEST_SKIP() << "there is a GPU";
  Case c;
  c.facts = facts;
  EXPECT_SAYS(c.refusal(), facts.built ? "driver" : "built without CUDA");
}

}  // namespace
}  // namespace tessera::tasks
