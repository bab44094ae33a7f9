#pragma once
// Cases of the flags that every task on a small chat model has: `in` gives the paths of the folders "model", "other"
// (the same with other weights), "taken" (with a result in it), and of the file peft.json.
#include <functional>
#include <nlohmann/json.hpp>

#include "flag_sweep.h"
#include "support/program.h"
#include "upload_flags.h"

namespace tessera::tasks {

using PathIn = std::function<std::string(const std::string&)>;

inline const Words kLora = {"--use_peft_lora"};
inline const Words kPissa = {"--use_peft_lora", "true", "--lora_r", "4", "--init_lora_weights", "pissa"};
inline const Words kFourBit = {"--use_peft_lora", "--use_4bit_quantization"};
inline const Words kEightBitEvaluated = {
    "--use_peft_lora", "--use_8bit_quantization", "--eval_strategy", "steps", "--eval_steps", "1"};
inline const Words kIa3 = {"--use_peft_lora", "--peft_type", "IA3", "--target_modules", "k_proj,down_proj"};
inline const Words kPrompt = {"--use_peft_lora", "--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "2"};
inline const Words kText = {"--use_peft_lora",
                            "--peft_type",
                            "PROMPT_TUNING",
                            "--num_virtual_tokens",
                            "2",
                            "--prompt_tuning_init",
                            "TEXT",
                            "--prompt_tuning_init_text",
                            "other words"};
inline const Words kEvaluated = {"--eval_strategy", "steps", "--eval_steps", "1"};
inline const Words kBest = {"--eval_steps", "1", "--save_steps", "1", "--load_best_model_at_end"};

/// The small chat model as a mixture of experts, whose balance has the weight 0.1.
inline void make_experts(const std::string& to, bool output_router_logits) {
  auto config = nlohmann::json::parse(read_file(test::kTinyChat + "/config.json"));
  config.update({{"model_type", "mixtral"},
                 {"architectures", {"MixtralForCausalLM"}},
                 {"num_local_experts", 4},
                 {"num_experts_per_tok", 2},
                 {"output_router_logits", output_router_logits},
                 {"router_aux_loss_coef", 0.1}});
  write_lines(to + "_form/config.json", {config.dump()});
  for (const char* file : {"/tokenizer.json", "/tokenizer_config.json"})
    write_lines(to + "_form" + file, {read_file(test::kTinyChat + file)});
  make_model(to + "_form", to);
}

inline std::vector<FlagCase> model_cases(const PathIn& in) {
  return {{"--model_name_or_path", {in("other")}},
          {"--tokenizer_name_or_path", {in("nowhere")}},
          {"--attn_implementation", {"eagre"}},
          {"--dtype", {"bfloat16"}},
          {"--use_peft_lora", {}},
          {"--adapter_name_or_path", {in("nowhere")}},
          {"--lora_r", {"4"}, kLora},
          {"--lora_alpha", {"4"}, kLora},
          {"--lora_dropout", {"0.5"}, kLora},
          {"--lora_target_modules", {"q_proj"}, kLora},
          {"--lora_modules_to_save", {"embed_tokens"}, kLora},
          {"--use_rslora", {}, kLora},
          {"--use_dora", {}, kLora},
          {"--use_4bit_quantization", {}, kLora},
          {"--bnb_4bit_quant_type", {"fp4"}, kFourBit},
          {"--bnb_4bit_compute_dtype", {"bfloat16"}, kFourBit},
          {"--use_nested_quant", {}, kFourBit},
          {"--use_8bit_quantization", {}, kLora},
          {"--llm_int8_threshold", {"0.5"}, kEightBitEvaluated},
          {"--llm_int8_skip_modules", {"q_proj"}, kFourBit},
          {"--lora_bias", {"all"}, kLora},
          {"--init_lora_weights", {"gaussian"}, kLora},
          {"--convert_to_lora", {}, kPissa},
          {"--peft_type", {"IA3"}, kLora},
          {"--peft_config", {in("peft.json")}, kLora},
          {"--target_modules", {"q_proj"}, kLora},
          {"--feedforward_modules", {"k_proj"}, kIa3},
          {"--peft_args", {"r=4"}, kLora},
          {"--num_virtual_tokens", {"3"}, kPrompt},
          {"--prompt_tuning_init", {"SAMPLE_VOCAB"}, kPrompt},
          {"--prompt_tuning_init_text", {"hello"}, kText}};
}

inline std::vector<FlagCase> training_cases(const PathIn& in) {
  return {{"--per_device_train_batch_size", {"2"}},
          {"--gradient_accumulation_steps", {"2"}},
          {"--num_train_epochs", {"0.5"}, {"--max_steps", "-1", "--num_train_epochs", "0.1"}},
          {"--max_steps", {"1"}},
          {"--dataloader_drop_last",
           {},
           {"--per_device_train_batch_size", "70", "--max_steps", "-1", "--num_train_epochs", "1"}},
          {"--seed", {"1"}},
          {"--data_seed", {"1"}},
          {"--train_sampling_strategy", {"sequential"}},
          {"--device", {"cuda"}},
          {"--profile", {in("trace.json")}},
          {"--learning_rate", {"1e-3"}},
          {"--weight_decay", {"0.5"}},
          {"--adam_beta1", {"0.5"}},
          {"--adam_beta2", {"0.5"}},
          {"--adam_epsilon", {"0.1"}},
          {"--max_grad_norm", {"0.01"}},
          {"--check_replicas", {"1"}},
          {"--nan_policy", {"skip"}, {"--learning_rate", "1e30"}},
          {"--optim", {"sgd"}},
          {"--adafactor", {}},
          {"--optim_args", {"momentum=0.9"}, {"--optim", "sgd"}},
          {"--optim_target_modules",
           {R"re(.*(\.q|q_proj|query))re"},
           {"--optim", "galore_adamw", "--optim_args", "rank=2", "--optim_target_modules", "all-linear"}},
          {"--lr_groups", {"norm=0"}},
          {"--loraplus_lr_ratio", {"8"}, kLora},
          {"--loraplus_lr_embedding",
           {"0.1"},
           {"--use_peft_lora", "--target_modules", "q_proj,embed_tokens", "--loraplus_lr_ratio", "8"}},
          {"--lr_scheduler_type", {"constant"}},
          {"--lr_scheduler_kwargs", {"{\"num_cycles\": 2}"}, {"--lr_scheduler_type", "cosine"}},
          {"--warmup_steps", {"2"}},
          {"--warmup_ratio", {"0.9"}},
          {"--neftune_noise_alpha", {"5"}},
          {"--save_dtype", {"bfloat16"}},
          {"--do_train", {"false"}},
          {"--bf16", {"true"}},
          {"--fp16", {"true"}}};
}

inline std::vector<FlagCase> interval_cases(const PathIn& in) {
  return {{"--model_revision", {"v1"}},
          {"--dataset_config", {"none"}},
          {"--output_dir", {in("elsewhere")}},
          {"--overwrite_output_dir", {}, {"--output_dir", in("taken")}},
          {"--logging_strategy", {"no"}},
          {"--logging_steps", {"2"}},
          {"--logging_first_step", {}, {"--logging_steps", "2"}},
          {"--do_eval", {"true"}, {"--max_steps", "-1", "--num_train_epochs", "0.1"}},
          {"--eval_strategy", {"steps"}},
          {"--eval_steps", {"2"}, {"--eval_steps", "1"}},
          {"--eval_delay", {"2"}, kEvaluated},
          {"--eval_on_start", {}},
          {"--save_strategy", {"no"}, {"--save_strategy", "steps", "--save_steps", "1"}},
          {"--save_steps", {"1"}},
          {"--save_total_limit", {"1"}, {"--save_steps", "1"}},
          {"--save_only_model", {}, {"--save_steps", "1"}},
          {"--save_accelerate_state", {}, {"--save_steps", "2"}},
          {"--resume_from_checkpoint", {"true"}},
          {"--load_best_model_at_end", {}, {"--eval_steps", "1", "--save_steps", "1"}},
          {"--greater_is_better", {"true"}, kBest},
          // At a rate of 0 no evaluation is better than the first, on any processor.
          {"--early_stopping_patience", {"1"}, {"--eval_steps", "1", "--learning_rate", "0", "--max_steps", "4"}},
          {"--early_stopping_threshold",
           {"100"},
           {"--eval_steps", "1", "--max_steps", "4", "--early_stopping_patience", "1"}},
          {"--metrics_file", {in("out/rows.jsonl")}},
          {"--report_to", {"tensorboard"}},
          {"--logging_dir", {in("board")}, {"--report_to", "tensorboard"}},
          {"--disable_tqdm", {"false"}},
          {"--print_model", {"true"}},
          {"--save_model", {"false"}},
          {"--max_memory", {"1MB"}},
          {"--gather", {"copy"}, {"--print_model", "true"}}};
}

inline const std::vector<Unseen> kUnseenOfDecoders = {
    {"--use_cpu",
     "where there is a GPU (unit/tasks/compute_device_test.cc); with --device cuda it is refused "
     "(process/sft_test.cc)"},
    {"--full_determinism", "of a GPU's operators (bench/gpu/rows.py: equal_runs)"},
    {"--tf32", "of a GPU's products"},
    {"--dataset_cache_dir", "where tokenised rows lie"},
    {"--dataset_num_proc", "time"},
    {"--pad_to_multiple_of", "the shape of batches"},
    {"--gradient_checkpointing", "time and memory"},
    {"--gradient_checkpointing_kwargs", "time and memory (unit/tasks/model_memory_test.cc)"},
    {"--sync_each_batch", "memory, and how sums over ranks round (unit/train/trainer_test.cc)"},
    {"--save_in_background", "time"},
    kUnseenOfUploads,
};

/// What the flag file of the reference's program names, each with dashes.
inline Words flags_of_reference(const std::string& program) {
  Words out;
  std::istringstream flags(read_file(std::string(TESSERA_TEST_DATA) + "/flags/" + program + ".txt"));
  for (std::string flag; std::getline(flags, flag);)
    if (!flag.empty() && !flag.starts_with("#")) out.push_back("--" + flag);
  return out;
}

inline void expect_all_known(const config::OptionTable& table, const std::string& program) {
  const Words known = table.names(), flags = flags_of_reference(program);
  EXPECT_FALSE(flags.empty());
  for (const auto& flag : flags)
    EXPECT_NE(std::find(known.begin(), known.end(), flag), known.end()) << program << " " << flag;
}

}  // namespace tessera::tasks
