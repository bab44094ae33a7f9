#pragma once
// `tessera sft`: supervised fine-tuning of causal language models, the program of PEFT's examples/sft (train.py over
// TRL's SFTTrainer) with its flags, fully sharded.
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "data/sft_dataset.h"
#include "tessera/fsdp/fully_shard.h"
#include "train/training_arguments.h"

namespace tessera::tasks {

struct SftOptions {
  // model
  std::string model_name_or_path;
  std::string tokenizer_name_or_path;  // empty: the model's folder
  std::string adapter_name_or_path;    // start from this adapter
  // adapters
  bool use_peft_lora = false;
  std::int64_t lora_r = 64;
  double lora_alpha = 16, lora_dropout = 0.1;
  std::vector<std::string> lora_target_modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                  "down_proj", "up_proj", "gate_proj"};
  std::vector<std::string> lora_modules_to_save;
  bool use_rslora = false, use_dora = false;
  std::string lora_bias = "none", init_lora_weights = "true";
  // data
  data::SftDataOptions data;
  std::string chat_template_format =
      "none";                        // chatml, zephyr: their template and special tokens; none: the tokenizer's
  std::string eos_token, pad_token;  // empty: the tokenizer's, or the format's
  std::int64_t pad_to_multiple_of = 1;
  bool padding_free = false;
  bool push_to_hub = false;
  bool use_4bit_quantization = false, use_8bit_quantization = false;

  train::TrainingArguments training;
  bool scale_loss = false;  // fp16, from the flags or the launcher
  bool print_model = true, save_model = true;
  fsdp::GatherForm gather = fsdp::GatherForm::kAuto;
  std::vector<std::string> notes;  // what was accepted without effect
};

/// nullopt: help was asked for and printed. ConfigError for contradictions.
std::optional<SftOptions> parse_sft(const std::vector<std::string>& args, std::ostream& out);

int sft(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
