// The flags of the tasks that train on texts and labels or texts to write.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "flag_sweep.h"
#include "support/program.h"
#include "tasks/classify.h"
#include "tasks/preference.h"
#include "tasks/seq2seq.h"
#include "tasks/summarize.h"
#include "upload_flags.h"

namespace tessera::tasks {
namespace {

using test::kDemo;
using test::operator+;
const Words kSaving = {"--save_steps", "1"};
class PairFlags : public testing::Test {
 protected:
  PairFlags() : folder_("pair_flags") {
    make_model(kDemo + "model", in("model"));
    make_model(kDemo + "model", in("other"), "1");
    auto config = nlohmann::json::parse(read_file(kDemo + "model/config.json"));
    config["initializer_factor"] = 3.0;  // so that it writes longer texts than the end alone
    std::filesystem::copy(kDemo + "model", in("large_config"));
    write_lines(in("large_config/config.json"), {config.dump()});
    make_model(in("large_config"), in("large"), "1");
    Words rows = {"input,answer,input2,answer2"}, other = rows;
    for (int i = 0; i < 10; ++i)
      rows.push_back(std::string(i % 2 == 0 ? "good" : "fine") + " day to all,positive,bad day,negative");
    for (int i = 0; i < 10; ++i) other.push_back("bad day to all,negative,good day,positive");
    write_lines(in("rows.csv"), rows);
    write_lines(in("other.csv"), other);
    write_lines(in("numbers.jsonl"), {R"({"text": "good", "label": 1})", R"({"text": "bad", "label": 0})",
                                      R"({"text": "fine", "label": 1})"});
    const std::string translated = R"({"translation": {"en": "good day", "de": "guten Tag"}})";
    write_lines(in("languages.jsonl"), {translated, translated, translated});
    write_lines(in("latin/rows.txt"), {"gr\xfc\xdf dich@positive", "weh mir@negative", "gut so@positive"});
    write_lines(in("taken/adapter_model.safetensors"), {""});
    write_lines(in("peft.json"), {R"({"peft_type": "IA3"})"});
  }
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  const Words kEvaluated = {"--eval_strategy", "steps", "--eval_steps", "1"};
  const Words kBest = {"--eval_steps", "1", "--save_steps", "1", "--load_best_model_at_end"};
  Words generates() const {
    return {"--model_name_or_path",    in("large"), "--learning_rate",        "0",
            "--generation_max_length", "12",        "--predict_with_generate"};
  }
  const Words kLora = {"--use_peft_lora", "true", "--lora_dropout", "0"};
  const Words kEightBit = {"--use_peft_lora", "true", "--lora_dropout", "0", "--use_8bit_quantization", "true"};
  const Words kFourBit = {"--use_peft_lora", "true", "--lora_dropout", "0", "--use_4bit_quantization", "true"};
  const Words kIa3 = {"--use_peft_lora", "true", "--peft_type", "IA3"};
  const Words kPissa = {"--use_peft_lora", "true", "--lora_dropout", "0", "--init_lora_weights", "pissa"};
  const Words kPrompt = {"--use_peft_lora", "true", "--peft_type", "PROMPT_TUNING", "--num_virtual_tokens", "2"};
  const Words kText = {"--use_peft_lora",           "true",       "--peft_type",          "PROMPT_TUNING",
                       "--num_virtual_tokens",      "2",          "--prompt_tuning_init", "TEXT",
                       "--prompt_tuning_init_text", "other words"};

  std::vector<FlagCase> adapter_cases() const {
    return {{"--adapter_name_or_path", {in("nowhere")}},
            {"--lora_r", {"4"}, kLora},
            {"--lora_alpha", {"4"}, kLora},
            {"--lora_dropout", {"0.5"}, {"--use_peft_lora", "true"}},
            {"--lora_target_modules", {"q"}, kLora},
            {"--lora_modules_to_save", {"lm_head"}, kLora},
            {"--use_rslora", {}, kLora},
            {"--use_dora", {}, kLora},
            {"--lora_bias", {"all"}, kLora},
            {"--init_lora_weights", {"gaussian"}, kLora},
            {"--convert_to_lora", {}, kPissa},
            {"--peft_type", {"IA3"}, kLora},
            {"--peft_config", {in("peft.json")}},
            {"--target_modules", {"q"}, kLora},
            {"--feedforward_modules", {"k"}, kIa3},
            {"--peft_args", {"r=4"}, kLora},
            {"--num_virtual_tokens", {"3"}, kPrompt},
            {"--prompt_tuning_init", {"SAMPLE_VOCAB"}, kPrompt},
            {"--prompt_tuning_init_text", {"good"}, kText},
            {"--use_4bit_quantization", {}, kLora},
            {"--bnb_4bit_quant_type", {"fp4"}, kFourBit},
            {"--bnb_4bit_compute_dtype", {"bfloat16"}, kFourBit},
            {"--use_8bit_quantization", {}, kLora},
            {"--llm_int8_threshold", {"0.5"}, kEightBit},
            {"--llm_int8_skip_modules", {"q"}, kFourBit},
            {"--use_nested_quant", {}, kFourBit}};
  }
  /// drops: flags for an epoch whose last batch is smaller.
  std::vector<FlagCase> training_cases(const Words& drops) const {
    return {{"--per_device_train_batch_size", {"2"}},
            {"--gradient_accumulation_steps", {"2"}},
            {"--dataloader_drop_last", {}, drops},
            {"--seed", {"2"}},
            {"--data_seed", {"2"}},
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
            {"--lr_groups", {"lora_B=4x"}, kLora},
            {"--loraplus_lr_ratio", {"8"}, kLora},
            {"--loraplus_lr_embedding",
             {"0.1"},
             {"--use_peft_lora", "true", "--lora_dropout", "0", "--target_modules",
              R"re(.*(shared|embed_tokens|\.q|q_proj))re", "--loraplus_lr_ratio", "8"}},
            {"--lr_scheduler_type", {"constant"}, {"--epochs", "2"}},
            {"--lr_scheduler_kwargs", {"{\"num_cycles\": 2}"}, {"--lr_scheduler_type", "cosine"}},
            {"--warmup_steps", {"2"}, {"--lr_scheduler_type", "linear"}},
            {"--warmup_ratio", {"0.9"}, {"--lr_scheduler_type", "linear"}},
            {"--neftune_noise_alpha", {"5"}},
            {"--save_dtype", {"bfloat16"}, {"--use_peft_lora", "false"}},
            {"--do_train", {"false"}},
            {"--loss_type", {"dft"}},
            {"--label_smoothing_factor", {"0.1"}},
            {"--bf16", {"true"}},
            {"--fp16", {"true"}},
            {"--output_dir", {in("elsewhere")}},
            {"--logging_strategy", {"no"}},
            {"--logging_steps", {"2"}},
            {"--logging_first_step", {}, {"--logging_steps", "2"}},
            {"--do_eval", {"false"}},
            {"--eval_strategy", {"no"}},
            {"--eval_steps", {"2"}, {"--eval_steps", "1"}},
            {"--eval_delay", {"2"}, kEvaluated},
            {"--eval_on_start", {}},
            {"--save_strategy", {"epoch"}},
            {"--save_steps", {"1"}},
            {"--save_total_limit", {"1"}, kSaving},
            {"--save_only_model", {}, kSaving},
            {"--save_accelerate_state", {}, kSaving},
            {"--resume_from_checkpoint", {"true"}},
            {"--load_best_model_at_end", {}, {"--eval_steps", "1", "--save_steps", "1"}},
            {"--metric_for_best_model", {"runtime"}, kBest},
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
  test::TempFolder folder_;
};

const std::vector<Unseen> kUnseenOfPairs = {
    {"--per_device_eval_batch_size", "time and memory"},
    {"--use_cpu",
     "where there is a GPU (unit/tasks/compute_device_test.cc); with --device cuda it is refused "
     "(process/sft_test.cc)"},
    {"--full_determinism", "of a GPU's operators (bench/gpu/rows.py: equal_runs)"},
    {"--tf32", "of a GPU's products"},
    {"--gradient_checkpointing", "time and memory"},
    {"--gradient_checkpointing_kwargs", "time and memory (unit/tasks/model_memory_test.cc)"},
    {"--sync_each_batch", "memory, and how sums over ranks round (unit/train/trainer_test.cc)"},
    {"--pad_to_max_length", "the shape of batches"},
    {"--save_in_background", "time"},
    {"--generation_num_beams",
     "in few texts (process/seq2seq_test.cc: EvaluationsGenerateTheSameTextsOnOneToThreeRanks)"},
    kUnseenOfUploads};

using Seq2SeqFlags = PairFlags;
using SummarizeFlags = PairFlags;
using ClassifyFlags = PairFlags;

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
  const Words languages = {"--dataset_path", in("languages.jsonl"), "--text_column", "", "--label_column", ""};
  const Words epochs = {"--max_steps", "-1", "--num_train_epochs", "1"};
  const Words drops = {"--per_device_train_batch_size", "7", "--max_steps", "-1", "--num_train_epochs", "1"};
  const std::vector<FlagCase> own = {
      {"--model_name_or_path", {in("other")}},
      {"--tokenizer_name_or_path", {in("nowhere")}},
      {"--use_peft_lora", {"false"}},
      {"--dataset_path", {in("other.csv")}},
      {"--dataset_config", {"none"}},
      {"--text_column", {"input2"}},
      {"--label_column", {"answer2"}},
      {"--label_names", {"no,yes"}, numbers},
      {"--encoding", {"utf-8"}, {"--dataset_path", in("latin")}},
      {"--max_length", {"2"}},
      {"--max_target_length", {"1"}},
      {"--validation_split", {"0.5"}},
      {"--validation_file", {in("other.csv")}},
      {"--source_prefix", {"say it: "}},
      {"--source_lang", {"en_XX"}, languages + Words{"--target_lang", "de"}},
      {"--target_lang", {"de"}, languages + Words{"--source_lang", "en"}},
      {"--val_max_target_length", {"1"}},
      {"--ignore_pad_token_for_loss", {"false"}},
      {"--predict_with_generate", {}},
      {"--generation_max_length", {"2"}, {"--predict_with_generate"}},
      {"--metric_name", {"sacrebleu"}, {"--predict_with_generate"}},
      {"--do_predict", {}, {"--test_file", in("rows.csv")}},
      {"--test_file", {in("other.csv")}, {"--do_predict", "--test_file", in("rows.csv")}},
      {"--test_split", {"train"}, {"--do_predict"}},
      {"--max_predict_samples", {"1"}, {"--do_predict", "--test_file", in("rows.csv")}},
      {"--max_train_samples", {"2"}},
      {"--max_eval_samples", {"1"}, {"--validation_split", "0.5"}},
      {"--num_train_epochs", {"2"}, epochs},
      {"--max_steps", {"1"}},
      {"--overwrite_output_dir", {}, {"--output_dir", in("taken")}},
      {"--max_eval_steps", {"1"}, {"--validation_split", "0.5", "--per_device_eval_batch_size", "1"}}};
  const auto cases = together(own, {adapter_cases(), training_cases(drops), kUploadCases});
  Seq2SeqOptions options;
  const config::OptionTable table = seq2seq_table(options);
  SweptTask task(seq2seq, base, in("out"));
  const auto notes = [](const Words& args) {
    std::ostringstream quiet;
    return parse_seq2seq(args, quiet)->notes;
  };
  sweep(table, task, notes, cases, kUnseenOfPairs);
}

TEST_F(Seq2SeqFlags, TranslationsHaveBleuAndOtherTextsRougeUnlessAFlagSaysSo) {
  std::ostringstream quiet;
  const auto metric = [&](const Words& flags) {
    const auto o = parse_seq2seq(Words{"--dataset_path", in("rows.csv"), "--predict_with_generate"} + flags, quiet);
    return std::pair(o->generate.metric, o->notes.at(0));
  };
  const Words languages = {"--source_lang", "en", "--target_lang", "de"};
  const Words prefix = {"--source_prefix", "translate English to German: "};
  using enum TextMetric;
  EXPECT_EQ(metric(languages), std::pair(kBleu, std::string("generated texts are measured by BLEU (rows are "
                                                            "translations: --source_lang)")));
  EXPECT_EQ(metric(prefix).first, kBleu);
  EXPECT_EQ(metric({"--source_prefix", "summarize: "}).first, kRouge);
  EXPECT_EQ(metric({}), std::pair(kRouge, std::string("generated texts are measured by ROUGE (no flag says that they "
                                                      "are translations; --metric_name sacrebleu measures BLEU)")));
  EXPECT_EQ(metric({"--metric_name", "sacrebleu"}).first, kBleu);
  EXPECT_EQ(metric(prefix + Words{"--metric_name", "rouge"}).first, kRouge);
  EXPECT_NO_THROW(metric(prefix + Words{"--metric_for_best_model", "bleu", "--eval_strategy", "epoch"}));
  EXPECT_THROW(metric({"--metric_for_best_model", "bleu", "--eval_strategy", "epoch"}), ConfigError);
}

TEST_F(Seq2SeqFlags, OnlyWhatAsksForEvaluationsNeedsRowsForThem) {
  const Words base = {"--model_name_or_path", in("model"), "--dataset_path", in("rows.csv"), "--text_column", "input",
                      "--label_column",       "answer",    "--output_dir",   in("out"),      "--max_steps",   "1"};
  SweptTask task(seq2seq, base, in("out"));
  const auto run = [&](Words flags) { return task.run(flags + Words{"--validation_split", "0"}); };
  EXPECT_TRUE(run({}).starts_with("exit code 0")) << run({});
  EXPECT_TRUE(run({"--eval_steps", "1"}).starts_with("exit code 0")) << run({"--eval_steps", "1"});
  EXPECT_NE(run({"--eval_strategy", "epoch"}).find("--eval_strategy asks for evaluations, but no rows are held out"),
            std::string::npos)
      << run({"--eval_strategy", "epoch"});
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
  const std::vector<FlagCase> own = {{"--model_name_or_path", {in("other")}},
                                     {"--tokenizer_name_or_path", {in("nowhere")}},
                                     {"--use_peft_lora", {}},
                                     {"--data_dir", {in("nowhere")}},
                                     {"--dataset_part", {"sep"}},
                                     {"--train_rows", {"3"}},
                                     {"--val_rows", {"2"}},
                                     {"--max_source_length", {"8"}},
                                     {"--max_target_length", {"4"}},
                                     {"--predict_with_generate", {}},
                                     {"--generation_max_length", {"3"}, generates()},
                                     {"--epochs", {"2"}},
                                     {"--max_steps", {"1"}},
                                     {"--gamma", {"0.1"}, {"--epochs", "2"}},
                                     {"--track_memory", {"false"}},
                                     {"--save_torch_file", {"true"}}};
  const auto cases = together(own, {adapter_cases(), training_cases({"--batch_size", "4"}), kUploadCases});
  auto unseen = kUnseenOfPairs;
  unseen.push_back({"--overwrite_output_dir", "nothing: every result has a name of its own"});
  SummarizeOptions options;
  const config::OptionTable table = summarize_table(options);
  SweptTask task(summarize, base, in("out"));
  const auto notes = [](const Words& args) {
    std::ostringstream quiet;
    return parse_summarize(args, quiet)->notes;
  };
  sweep(table, task, notes, cases, unseen);
}

TEST_F(ClassifyFlags, EachChangesSomethingOrIsRefusedOrSaysThatItDoesNot) {
  make_model(test::kTinyChat, in("chat"));
  make_model(test::kTinyChat, in("chat_other"), "1");
  auto config = nlohmann::json::parse(read_file(test::kTinyChat + "/config.json"));
  config.update({{"architectures", {"LlamaForSequenceClassification"}}, {"num_labels", 3}, {"pad_token_id", 256}});
  std::filesystem::copy(test::kTinyChat, in("three_config"));
  write_lines(in("three_config/config.json"), {config.dump()});
  make_model(in("three_config"), in("three"));
  Words rows, other;
  for (int i = 0; i < 12; ++i) {
    const std::string text = i % 2 == 0 ? "good" : "bad", again = i % 3 == 0 ? "fine" : "poor";
    rows.push_back(R"({"text": ")" + text + R"( day", "label": ")" + text + R"(", "text2": ")" + again +
                   R"( weather", "label2": ")" + again + R"(", "both": ")" + text + "," + again + R"(", "number": )" +
                   std::to_string(i % 2) + "}");
    other.push_back(R"({"text": ")" + again + R"( day", "label": ")" + text + R"("})");
  }
  write_lines(in("rows.jsonl"), rows);
  write_lines(in("other.jsonl"), other);
  const Words base = {"--model_name_or_path",
                      in("chat"),
                      "--dataset_path",
                      in("rows.jsonl"),
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
                      "--disable_tqdm",
                      "--print_model",
                      "false",
                      "--text_column",
                      "text",
                      "--label_column",
                      "label"};
  const Words drops = {"--per_device_train_batch_size", "7", "--max_steps", "-1", "--num_train_epochs", "1"},
              epochs = {"--max_steps", "-1", "--num_train_epochs", "1"}, numbers = {"--label_column", "number"},
              several = {"--label_column", "both", "--problem_type", "multi_label_classification"},
              ia3 = kIa3 + Words{"--target_modules", "k_proj,down_proj"};
  const std::vector<FlagCase> own = {
      {"--model_name_or_path", {in("chat_other")}},
      {"--tokenizer_name_or_path", {in("nowhere")}},
      {"--ignore_mismatched_sizes", {}, {"--model_name_or_path", in("three")}},
      {"--pad_token", {"<|im_end|>"}},
      {"--use_peft_lora", {}},
      {"--lora_target_modules", {"q_proj"}, kLora},
      {"--lora_modules_to_save", {"norm"}, kLora},
      {"--llm_int8_skip_modules", {"q_proj"}, kFourBit},
      {"--target_modules", {"q_proj"}, kLora},
      {"--feedforward_modules", {"k_proj"}, ia3},
      {"--dataset_path", {in("other.jsonl")}},
      {"--dataset_config", {"none"}},
      {"--task_name", {"sst2"}, numbers},
      {"--text_column", {"text2"}},
      {"--text_column_delimiter", {"; "}, {"--text_column", "text,text2"}},
      {"--text_pair_column", {"text2"}},
      {"--label_column", {"label2"}},
      {"--label_names", {"no,yes"}, numbers},
      {"--encoding", {"utf-8"}, {"--dataset_path", in("latin")}},
      {"--problem_type", {"regression"}, numbers},
      {"--do_regression", {}, numbers},
      {"--label_separator", {";"}, several},
      {"--max_length", {"3"}},
      {"--validation_split", {"0.5"}},
      {"--validation_file", {in("other.jsonl")}},
      {"--do_predict", {}, {"--test_file", in("other.jsonl")}},
      {"--test_file", {in("other.jsonl")}, {"--do_predict", "--test_file", in("rows.jsonl")}},
      {"--test_split", {"train"}, {"--do_predict"}},
      {"--max_predict_samples", {"1"}, {"--do_predict", "--test_file", in("rows.jsonl")}},
      {"--max_train_samples", {"4"}},
      {"--max_eval_samples", {"1"}, {"--validation_split", "0.5"}},
      {"--num_train_epochs", {"2"}, epochs},
      {"--max_steps", {"1"}},
      {"--lr_scheduler_type", {"constant"}},
      {"--loss_type", {"dft"}},
      {"--early_stopping_patience", {"1"}, {"--eval_steps", "1", "--learning_rate", "0", "--max_steps", "4"}},
      {"--early_stopping_threshold",
       {"100"},
       {"--eval_steps", "1", "--max_steps", "4", "--early_stopping_patience", "1"}},
      {"--save_strategy", {"no"}},
      {"--save_dtype", {"bfloat16"}},
      {"--overwrite_output_dir", {}, {"--output_dir", in("taken"), "--use_peft_lora", "true"}}};
  const auto cases = together(own, {adapter_cases(), training_cases(drops), kUploadCases});
  auto unseen = kUnseenOfPairs;
  ClassifyOptions options;
  const config::OptionTable table = classify_table(options);
  SweptTask task(classify, base, in("out"));
  const auto notes = [](const Words& args) {
    std::ostringstream quiet;
    return parse_classify(args, quiet)->notes;
  };
  sweep(table, task, notes, cases, unseen);
}

// Which metrics there are follows from the labels: of several kinds of problems only those of the data's are offered.
TEST_F(ClassifyFlags, TheMetricForTheBestModelIsOneOfTheProblems) {
  make_model(test::kTinyChat, in("chat"));
  const auto refusal = [&](const Words& flags) {
    std::ostringstream quiet;
    try {
      (void)classify(Words{"--model", in("chat"), "--dataset_path", in("numbers.jsonl"), "--output_dir", in("out"),
                           "--metric_for_best_model"} +
                         flags,
                     quiet, quiet);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  for (const char* name : {"foo", "mse"})
    EXPECT_NE(refusal({name}).find("; there are eval_loss, eval_accuracy, eval_f1, eval_runtime"), std::string::npos)
        << refusal({name});
  EXPECT_NE(refusal({"accuracy", "--do_regression"}).find("there are eval_loss, eval_mse, eval_mae, eval_pearson"),
            std::string::npos);
}

// The launch is looked at more than once in a run.
TEST_F(SummarizeFlags, WhatComputesIsSaidOnce) {
  std::ostringstream out, err;
  EXPECT_EQ(summarize({"--model_name_or_path",
                       in("model"),
                       "--data_dir",
                       std::string(TESSERA_TEST_DATA) + "/wikihow",
                       "--output_dir",
                       in("out"),
                       "--train_rows",
                       "3",
                       "--val_rows",
                       "1",
                       "--max_source_length",
                       "8",
                       "--max_target_length",
                       "4",
                       "--max_steps",
                       "1",
                       "--bf16",
                       "false",
                       "--disable_tqdm",
                       "--save_model",
                       "false"},
                      out, err),
            0)
      << err.str();
  const std::string said = out.str();
  const auto first = said.find("bf16: ");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("bf16: ", first + 1), std::string::npos) << said;
}

TEST(AdaptersSideBySide, AreOfSftAlone) {
  std::ostringstream quiet;
  const Words model = {"--model", "m"}, adapters = {"--adapters", "adapters.yaml"};
  const auto said = [&](const auto& parse, const Words& data) -> std::string {
    try {
      (void)parse(model + data + adapters);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return {};
  };
  const Words path = {"--dataset_path", "d"}, folder = {"--data_dir", "d"};
  for (const auto& text :
       {said([&](const Words& args) { return parse_classify(args, quiet); }, path),
        said([&](const Words& args) { return parse_seq2seq(args, quiet); }, path),
        said([&](const Words& args) { return parse_summarize(args, quiet); }, folder),
        said([&](const Words& args) { return parse_preference(preference::Method::kKto, args, quiet); }, path)})
    EXPECT_NE(text.find("--adapters"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera::tasks
