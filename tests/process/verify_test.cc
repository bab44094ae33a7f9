// Every reference folder of tests/data/goldens through the program: plain, and sharded over two and three processes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <string>
#include <vector>

#include "io/tensor_source.h"
#include "support/program.h"
#include "support/subprocess.h"

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

class VerifyModels : public testing::TestWithParam<const char*> {};

TEST_P(VerifyModels, EqualTheReferenceOnOneTwoAndThreeRanks) {
  for (const int ranks : {1, 2, 3}) {
    const Finished r = verify(GetParam(), ranks);
    EXPECT_EQ(r.exit_code, 0) << ranks << " ranks\n" << r.out << r.err;
    EXPECT_NE(r.out.find("verified"), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, VerifyModels,
    testing::Values("A_models/t5_v1_0", "A_models/t5_v1_0/bin", "A_models/t5_v1_0/fp16", "A_models/t5_v1_1",
                    "A_models/t5_long", "A_models/mt5", "A_models/generate_t5", "A_models/llama_gqa_rope3",
                    "A_models/gemma2", "A_models/mixtral", "A_models/gpt2", "A_models/opt_postnorm_proj",
                    "A_models/falcon_new", "A_models/generate_llama", "A_models/logits_processors", "B_train/t5_full",
                    "B_train/t5_lora_qv", "B_train/t5u_dora_save_head", "B_train/t5_layers_patterns",
                    "A_models/bert_mlm", "A_models/roberta_cls", "B_train/bert_lora_cls", "B_train/gpt2_lora",
                    "B_train/llama_dora", "B_train/llama_lora_embed", "B_train/hf_trainer",
                    "K_preference/cls_bert_multilabel", "K_preference/cls_gpt2", "K_preference/cls_llama",
                    "K_preference/cls_llama_multilabel", "K_preference/cls_qwen2", "J_peft/llama_ia3",
                    "J_peft/llama_ia3_save_lm_head", "J_peft/t5_ia3", "J_peft/bert_ia3_cls", "J_peft/llama_prompt",
                    "J_peft/t5_prompt", "J_peft/bert_prompt_cls", "J_peft/llama_loha", "J_peft/llama_lokr",
                    "J_peft/llama_lokr_both", "J_peft/llama_vera", "J_peft/llama_vblora", "J_peft/llama_fourierft",
                    "J_peft/llama_miss", "J_peft/llama_miss_bat", "J_peft/llama_hra", "J_peft/llama_oft",
                    "J_peft/llama_oft_exact", "J_peft/llama_boft", "J_peft/llama_boft_butterfly",
                    "J_peft/llama_lora_gaussian", "J_peft/llama_loraplus", "C_quant/model_nf4", "C_quant/model_fp4",
                    "C_quant/model_nf4_double_bf16", "C_quant/model_nf4_double_storage_bf16", "C_quant/qlora_fp32",
                    "C_quant/qlora_bf16", "C_quant/qdora_fp32"));

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
  io::write_safetensors((folder / "io.safetensors").string(),
                        {{"input_ids", at::arange(20, at::kLong).remainder(24).view({2, 10})},
                         {"logits", io::read_tensor(*io::open_safetensors(data + ".safetensors"), "logits")}});
  for (const std::string& target : {folder.string(), (folder / "model.gguf").string()}) {
    const Finished r = test::run({TESSERA_BINARY, "verify", target});
    EXPECT_EQ(r.exit_code, 0) << target << "\n" << r.out << r.err;
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Families, VerifyGguf, testing::Values("llama", "gemma2", "falcon", "gpt2", "mixtral"));

TEST(Verify, FailsWhenTheToleranceIsTooTightToBeMet) {
  const Finished r = verify("A_models/t5_v1_0", 1, {"--logits_tolerance", "1e-12"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.out.find("FAILED logits"), std::string::npos) << r.out;
}

}  // namespace
}  // namespace tessera
