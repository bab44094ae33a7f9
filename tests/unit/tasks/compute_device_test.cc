// --device cuda, on machines that lack something for it.
#include <gtest/gtest.h>

#include "support/program.h"
#include "tasks/fsdp_options.h"
#include "tessera/base/error.h"

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
  c.facts.count = 1;
  c.facts.local_ranks = 2;
  EXPECT_SAYS(c.refusal("auto"), "2 ranks on this host and 1 GPUs");
}

TEST(ComputeDevice, IsTheGpuOfTheRankOnItsHost) {
  Case c;
  EXPECT_EQ(c.refusal(), "none: cuda:0");
  c.config.fsdp.offload_params = true;
  c.facts.count = 4;
  c.facts.local_rank = 2, c.facts.local_ranks = 3;
  EXPECT_EQ(c.refusal(), "none: cuda:2");
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

TEST(ComputeDevice, RefusesMoreRanksOfAHostThanItHasGpus) {
  Case c;
  c.config.fsdp.offload_params = true;
  c.facts.local_ranks = 2;
  EXPECT_SAYS(c.refusal(), "2 ranks on this host and 1 GPUs");
}

TEST(ComputeDevice, RanksShareGpusWhereTheyMay) {
  Case c;
  c.facts.count = 2;
  c.facts.local_ranks = 3, c.facts.local_rank = 2;
  EXPECT_SAYS(c.refusal(), "TESSERA_SHARE_GPUS=1");
  c.facts.share = true;
  EXPECT_EQ(c.refusal(), "none: cuda:0");
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
