// The reference stack's outputs, gradients, generations and runs, on two ranks whose units compute on a device that is
// not the CPU; and on one rank all of whose state stays there.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "support/fake_device.h"
#include "support/goldens.h"
#include "tessera/base/error.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;

void expect_verified(const std::filesystem::path& folder, fsdp::GatherForm gather = fsdp::GatherForm::kAuto,
                     fsdp::StateOn state_on = fsdp::StateOn::kHost, int ranks = 2) {
  SCOPED_TRACE(folder);
  const auto verify = [&](std::shared_ptr<comm::Communicator> group) {
    at::set_num_threads(1);
    VerifyOptions options;
    options.folder = folder.string();
    options.sharded = true;
    options.fsdp.wrap = nullptr;
    options.fsdp.gather = gather;
    options.fsdp.device = test::fake_device(group->rank());
    options.fsdp.state_on = state_on;
    std::ostringstream report;
    const bool passed = verify_folder(options, group, report);
    if (group->rank() == 0) {
      EXPECT_TRUE(passed) << report.str();
    }
  };
  EXPECT_NO_THROW(comm::run_threads(ranks, verify));
  EXPECT_EQ(test::fake_device_bytes(), 0);
}

/// The folders of a family that hold what was expected.
std::vector<std::string> folders_of(const std::string& family) {
  auto names = test::names_in(test::goldens(family), "");
  std::erase_if(names, [&](const auto& name) { return !fs::exists(test::goldens(family) / name / "expect.json"); });
  return names;
}

TEST(OnADeviceGolden, LossesAndNormsAreThoseOfTorchFsdp) {
  if (!fs::exists(test::goldens("H_fsdp") / "expect.json")) return;
  for (auto gather : {fsdp::GatherForm::kCopy, fsdp::GatherForm::kAuto})
    expect_verified(test::goldens("H_fsdp"), gather);
}

TEST(OnADeviceGolden, OutputsGradientsAndGenerationsAreThoseOfTransformers) {
  for (const auto& name : folders_of("A_models")) expect_verified(test::goldens("A_models") / name);
}

TEST(OnADeviceGolden, RunsAreThoseOfPeftAndOfTheTrainer) {
  for (const auto& name : folders_of("B_train")) expect_verified(test::goldens("B_train") / name);
}

TEST(OnADeviceGolden, NothingLeavesTheDeviceAndRunsAreThoseOfPeftAndOfTheTrainer) {
  for (const auto& name : folders_of("B_train"))
    expect_verified(test::goldens("B_train") / name, fsdp::GatherForm::kAuto, fsdp::StateOn::kDevice, 1);
}

// Among them two whose method does something beside the optimizer's step: AdaLoRA and COFT.
TEST(OnADeviceGolden, PeftMethodsTrainWhereTheirParametersStay) {
  // They take operators of GPUs that a made-up device has not: an LSTM's cell, and views of complex numbers.
  const std::set<std::string> of_gpus = {"llama_ptuning_lstm", "llama_fourierft"};
  for (const auto& name : folders_of("J_peft"))
    for (int ranks = 1; ranks <= 2 && !of_gpus.contains(name); ++ranks)
      expect_verified(test::goldens("J_peft") / name, fsdp::GatherForm::kAuto, fsdp::StateOn::kDevice, ranks);
}

TEST(OnADeviceGolden, NothingLeavesTheDevicesOfTwoRanksThatHaveKernels) {
  const test::FakeKernels kernels;
  const auto before = test::FakeKernels::launches();
  const bool has_runs = fs::exists(test::goldens("H_fsdp") / "expect.json");
  const auto folders = folders_of("B_train");
  if (!has_runs && folders.empty()) GTEST_SKIP() << "the set has neither H_fsdp nor B_train";
  if (has_runs) expect_verified(test::goldens("H_fsdp"), fsdp::GatherForm::kAuto, fsdp::StateOn::kDevice);
  for (const auto& name : folders)
    expect_verified(test::goldens("B_train") / name, fsdp::GatherForm::kAuto, fsdp::StateOn::kDevice);
  EXPECT_GT(test::FakeKernels::launches(), before);
}

}  // namespace
}  // namespace tessera::verify
