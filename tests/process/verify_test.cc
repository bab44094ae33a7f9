// `tessera verify` as people run it: its flags, GGUF files, and what fails. All goldens: tests/golden/folders_test.cc.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <string>
#include <vector>

#include "support/program.h"
#include "support/subprocess.h"
#include "tessera/io/tensor_source.h"

namespace tessera {
namespace {

using test::Finished;

const std::string kGoldens = test::kTestData + "/goldens/";

Finished verify(const std::string& folder, int ranks, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> command = {TESSERA_BINARY};
  if (ranks > 1) command.insert(command.end(), {"launch", "--cpu", "--num_processes", std::to_string(ranks)});
  command.insert(command.end(), {"verify", kGoldens + folder});
  command.insert(command.end(), flags.begin(), flags.end());
  return test::run(command);
}

TEST(Verify, FoldersOfGptqAndAwqGiveTheValuesOfTheirDenseWeights) {
  for (const char* folder : {"gptq_llama", "awq_llama"})
    for (const int ranks : {1, 2, 3}) {
      const Finished r = verify(std::string("../grouped/") + folder, ranks);
      EXPECT_EQ(r.exit_code, 0) << folder << ", " << ranks << " ranks\n" << r.out << r.err;
    }
}

TEST(Verify, EveryGatherFormGivesTheReference) {
  for (const char* form : {"copy", "shared", "mapped"}) {
    const Finished r = verify("B_train/t5_lora_qv", 2, {"--gather", form});
    EXPECT_EQ(r.exit_code, 0) << form << "\n" << r.out << r.err;
  }
}

class VerifyGguf : public testing::TestWithParam<const char*> {};

TEST_P(VerifyGguf, GivesTheLogitsOfTheModelItWasMadeFrom) {
  const std::string data = test::kTestData + "/gguf/" + GetParam();
  const auto folder = std::filesystem::path(testing::TempDir()) / (std::string("verify_gguf_") + GetParam());
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(data + ".gguf", folder / "model.gguf", std::filesystem::copy_options::overwrite_existing);
  const auto ids = at::arange(20, at::kLong).remainder(24).view({2, 10});
  std::vector<std::pair<std::string, at::Tensor>> io = {
      {"input_ids", ids}, {"logits", io::read_tensor(*io::open_safetensors(data + ".safetensors"), "logits")}};
  if (std::string(GetParam()).starts_with("t5")) io.emplace_back("labels", ids.narrow(1, 0, 6).contiguous());
  io::write_safetensors((folder / "io.safetensors").string(), io);
  for (const std::string& target : {folder.string(), (folder / "model.gguf").string()}) {
    const Finished r = test::run({TESSERA_BINARY, "verify", target});
    EXPECT_EQ(r.exit_code, 0) << target << "\n" << r.out << r.err;
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Families, VerifyGguf,
                         testing::Values("llama", "llama3", "mistral", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma",
                                         "gemma2", "gemma3", "granite", "smollm3", "olmo2", "starcoder2", "phi3",
                                         "phi3_long", "gpt2", "gptneox", "bloom", "falcon", "falcon_two_norms", "t5",
                                         "t5_gated", "phi2", "stablelm", "stablelm_parallel", "olmo", "olmoe",
                                         "chatglm", "glm4", "starcoder"));

TEST(Verify, FailsWhenTheToleranceIsTooTightToBeMet) {
  const Finished r = verify("A_models/t5_v1_0", 1, {"--logits_tolerance", "1e-12"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.out.find("FAILED logits"), std::string::npos) << r.out;
}

}  // namespace
}  // namespace tessera
