// The flags of the two tasks that train encoder-decoder models.
#include <gtest/gtest.h>

#include "flag_sweep.h"
#include "support/program.h"
#include "tasks/seq2seq.h"
#include "tasks/summarize.h"

namespace tessera::tasks {
namespace {

using test::kDemo;
const Words kSaving = {"--save_steps", "1"};

class PairFlags : public testing::Test {
 protected:
  PairFlags() : folder_("pair_flags") {
    make_model(kDemo + "model", in("model"));
    make_model(kDemo + "model", in("other"), "1");
    Words rows = {"input,answer,input2,answer2"}, other = rows;
    for (int i = 0; i < 10; ++i) rows.push_back("good day to all,positive,bad day,negative");
    for (int i = 0; i < 10; ++i) other.push_back("bad day to all,negative,good day,positive");
    write_lines(in("rows.csv"), rows);
    write_lines(in("other.csv"), other);
    write_lines(in("numbers.jsonl"), {R"({"text": "good", "label": 1})", R"({"text": "bad", "label": 0})",
                                      R"({"text": "fine", "label": 1})"});
    write_lines(in("latin/rows.txt"), {"gr\xfc\xdf dich@positive", "weh mir@negative", "gut so@positive"});
    write_lines(in("taken/adapter_model.safetensors"), {""});
    write_lines(in("peft.json"), {R"({"peft_type": "IA3"})"});
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }
  test::TempFolder folder_;
};

using Seq2SeqFlags = PairFlags;
using SummarizeFlags = PairFlags;

TEST_F(Seq2SeqFlags, EachChangesSomethingOrIsRefusedOrSaysThatItDoesNot) {
  const Words columns = {"--text_column", "input", "--label_column", "answer"};
  Words base = {"--model_name_or_path",
                in("model"),
                "--dataset_path",
                in("rows.csv"),
                "--output_dir",
                in("out"),
                "--max_steps",
                "2",
                "--per_device_train_batch_size",
                "3",
                "--learning_rate",
                "1e-2",
                "--logging_steps",
                "1",
                "--lora_dropout",
                "0",
                "--disable_tqdm",
                "--print_model",
                "false"};
  base.insert(base.end(), columns.begin(), columns.end());
  const Words numbers = {"--dataset_path", in("numbers.jsonl"), "--text_column", "text", "--label_column", "label"};
  const Words epochs = {"--max_steps", "-1", "--num_train_epochs", "1"};
  const Words prompt = {"--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "2"};
  Words text = prompt;
  text.insert(text.end(), {"--prompt_tuning_init", "TEXT", "--prompt_tuning_init_text", "other words"});
  const std::vector<FlagCase> cases = {
      {"--model_name_or_path", {in("other")}},
      {"--tokenizer_name_or_path", {in("nowhere")}},
      {"--use_peft_lora", {"false"}},
      {"--adapter_name_or_path", {in("nowhere")}},
      {"--lora_r", {"4"}},
      {"--lora_alpha", {"4"}},
      {"--lora_dropout", {"0.5"}},
      {"--lora_target_modules", {"q"}},
      {"--lora_modules_to_save", {"lm_head"}},
      {"--use_rslora", {}},
      {"--use_dora", {}},
      {"--lora_bias", {"all"}},
      {"--init_lora_weights", {"gaussian"}},
      {"--peft_type", {"IA3"}},
      {"--peft_config", {in("peft.json")}},
      {"--target_modules", {"q"}},
      {"--feedforward_modules", {"k"}, {"--peft_type", "IA3"}},
      {"--num_virtual_tokens", {"3"}, prompt},
      {"--prompt_tuning_init", {"SAMPLE_VOCAB"}, prompt},
      {"--prompt_tuning_init_text", {"good"}, text},
      {"--dataset_path", {in("other.csv")}},
      {"--text_column", {"input2"}},
      {"--label_column", {"answer2"}},
      {"--label_names", {"no,yes"}, numbers},
      {"--encoding", {"utf-8"}, {"--dataset_path", in("latin")}},
      {"--max_length", {"2"}},
      {"--max_target_length", {"1"}},
      {"--validation_split", {"0.5"}},
      {"--max_train_samples", {"2"}},
      {"--per_device_train_batch_size", {"2"}},
      {"--gradient_accumulation_steps", {"2"}},
      {"--learning_rate", {"1e-3"}},
      {"--weight_decay", {"0.5"}},
      {"--adam_beta1", {"0.5"}},
      {"--adam_beta2", {"0.5"}},
      {"--adam_epsilon", {"0.1"}},
      {"--max_grad_norm", {"0.01"}},
      {"--num_train_epochs", {"2"}, epochs},
      {"--max_steps", {"1"}},
      {"--lr_scheduler_type", {"constant"}},
      {"--warmup_steps", {"2"}},
      {"--warmup_ratio", {"0.9"}},
      {"--seed", {"1"}},
      {"--save_dtype", {"bfloat16"}, {"--use_peft_lora", "false"}},
      {"--do_train", {"false"}},
      {"--bf16", {"true"}},
      {"--fp16", {"true"}},
      {"--device", {"cuda"}},
      {"--gather", {"copy"}, {"--print_model", "true"}},
      {"--output_dir", {in("elsewhere")}},
      {"--overwrite_output_dir", {}, {"--output_dir", in("taken")}},
      {"--save_strategy", {"epoch"}},
      {"--save_steps", {"1"}},
      {"--save_total_limit", {"1"}, kSaving},
      {"--save_only_model", {}, kSaving},
      {"--save_accelerate_state", {}, kSaving},
      {"--resume_from_checkpoint", {"true"}},
      {"--logging_steps", {"2"}},
      {"--do_eval", {"false"}},
      {"--max_eval_steps", {"1"}, {"--validation_split", "0.5", "--per_device_eval_batch_size", "1"}},
      {"--metrics_file", {in("out/rows.jsonl")}},
      {"--save_model", {"false"}},
      {"--disable_tqdm", {"false"}},
      {"--print_model", {"true"}},
  };
  const std::vector<Unseen> unseen = {{"--per_device_eval_batch_size", "time and memory"},
                                      {"--pad_to_max_length", "the shape of batches"},
                                      {"--save_in_background", "time"}};
  Seq2SeqOptions options;
  const config::OptionTable table = seq2seq_table(options);
  SweptTask task(seq2seq, base, in("out"));
  const auto notes = [](const Words& args) {
    std::ostringstream quiet;
    return parse_seq2seq(args, quiet)->notes;
  };
  sweep(table, task, notes, cases, unseen);
}

TEST_F(SummarizeFlags, EachChangesSomethingOrIsRefusedOrSaysThatItDoesNot) {
  const std::string wikihow = std::string(TESSERA_TEST_DATA) + "/wikihow";
  const Words base = {"--model_name_or_path",
                      in("model"),
                      "--data_dir",
                      wikihow,
                      "--output_dir",
                      in("out"),
                      "--train_rows",
                      "6",
                      "--val_rows",
                      "3",
                      "--max_source_length",
                      "24",
                      "--max_target_length",
                      "8",
                      "--epochs",
                      "1",
                      "--batch_size",
                      "3",
                      "--bf16",
                      "false",
                      "--save_torch_file",
                      "false",
                      /* its bytes hold the date */ "--disable_tqdm"};
  const std::vector<FlagCase> cases = {
      {"--model_name_or_path", {in("other")}},
      {"--tokenizer_name_or_path", {in("nowhere")}},
      {"--data_dir", {in("nowhere")}},
      {"--dataset_part", {"sep"}},
      {"--train_rows", {"3"}},
      {"--val_rows", {"2"}},
      {"--max_source_length", {"8"}},
      {"--max_target_length", {"4"}},
      {"--batch_size", {"2"}},
      {"--epochs", {"2"}},
      {"--lr", {"1e-4"}},
      {"--gamma", {"0.1"}, {"--epochs", "2"}},
      {"--seed", {"2"}},
      {"--save_dtype", {"bfloat16"}},
      {"--do_train", {"false"}},
      {"--bf16", {"true"}},
      {"--fp16", {"true"}},
      {"--gather", {"copy"}, {"--print_model", "true"}},
      {"--device", {"cuda"}},
      {"--no_cuda", {}, {"--device", "cuda"}},
      {"--run_validation", {"false"}},
      {"--track_memory", {"false"}},
      {"--save_model", {"false"}},
      {"--save_torch_file", {"true"}},
      {"--output_dir", {in("elsewhere")}},
      {"--save_strategy", {"epoch"}},
      {"--save_steps", {"1"}},
      {"--save_total_limit", {"1"}, kSaving},
      {"--save_only_model", {}, kSaving},
      {"--save_accelerate_state", {}, kSaving},
      {"--resume_from_checkpoint", {"true"}},
      {"--metrics_file", {in("out/rows.jsonl")}},
      {"--disable_tqdm", {"false"}},
      {"--print_model", {}},
  };
  const std::vector<Unseen> unseen = {{"--test_batch_size", "time and memory"},
                                      {"--pad_to_max_length", "the shape of batches"},
                                      {"--save_in_background", "time"}};
  SummarizeOptions options;
  const config::OptionTable table = summarize_table(options);
  SweptTask task(summarize, base, in("out"));
  const auto notes = [](const Words& args) {
    std::ostringstream quiet;
    return parse_summarize(args, quiet)->notes;
  };
  sweep(table, task, notes, cases, unseen);
}

}  // namespace
}  // namespace tessera::tasks
