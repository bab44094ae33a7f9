// The reference stack's outputs, gradients, generations and runs, on two ranks whose units compute on a device that is
// not the CPU.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/fake_device.h"
#include "tessera/base/error.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

using Verifier = bool (*)(const VerifyOptions&, std::shared_ptr<comm::Communicator>, std::ostream&);

void expect_verified(Verifier verify, const std::string& folder, fsdp::GatherForm gather = fsdp::GatherForm::kAuto) {
  SCOPED_TRACE(folder);
  comm::run_threads(2, [&](std::shared_ptr<comm::Communicator> group) {
    at::set_num_threads(1);
    VerifyOptions options;
    options.folder = TESSERA_TEST_DATA "/" + folder;
    options.sharded = true;
    options.fsdp.wrap = nullptr;
    options.fsdp.gather = gather;
    options.fsdp.device = test::fake_device(group->rank());
    std::ostringstream report;
    const bool passed = verify(options, group, report);
    if (group->rank() == 0) {
      EXPECT_TRUE(passed) << report.str();
    }
  });
  EXPECT_EQ(test::fake_device_bytes(), 0);
}

TEST(OnADevice, LossesAndNormsAreThoseOfTorchFsdp) {
  for (auto gather : {fsdp::GatherForm::kCopy, fsdp::GatherForm::kAuto})
    expect_verified(verify_fsdp, "fsdp_runs", gather);
}

TEST(OnADevice, OutputsAndGradientsAreThoseOfTransformers) {
  for (const char* model : {"bert_mlm", "falcon_new", "gemma2", "gpt2", "llama_gqa_rope3", "mixtral", "mt5",
                            "opt_postnorm_proj", "roberta_cls", "t5_long", "t5_v1_0", "t5_v1_1"})
    expect_verified(verify_outputs, std::string("goldens/A_models/") + model);
}

TEST(OnADevice, GenerationsAreThoseOfTransformers) {
  for (const char* model : {"generate_llama", "generate_t5"})
    expect_verified(verify_generation, std::string("goldens/A_models/") + model);
}

TEST(OnADevice, AdaptersTrainAsPeftDoes) {
  for (const char* run : {"bert_lora_cls", "gpt2_lora", "llama_dora", "llama_lora_embed", "t5_full",
                          "t5_layers_patterns", "t5_lora_qv", "t5u_dora_save_head"})
    expect_verified(verify_run, std::string("goldens/B_train/") + run);
  expect_verified(verify_trainer, "goldens/B_train/hf_trainer");
}

}  // namespace
}  // namespace tessera::verify
