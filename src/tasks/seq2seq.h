#pragma once
// `tessera seq2seq`: fine-tunes an encoder-decoder model on pairs of texts, with LoRA or in full, fully sharded. The
// program of PEFT's FSDP guide (peft_lora_seq2seq_accelerate_fsdp) with its defaults and the Trainer's flag names.
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "data/text_pair.h"
#include "tasks/lora_flags.h"
#include "tessera/fsdp/fully_shard.h"
#include "train/checkpoint_options.h"
#include "train/trainer.h"

namespace tessera::tasks {

struct Seq2SeqOptions {
  // model
  std::string model_name_or_path = "t5-base";
  std::string tokenizer_name_or_path;  // empty: the model's folder
  LoraFlags adapter;
  // data
  std::string dataset_path;
  data::ReadOptions columns;
  std::int64_t max_length = 64;
  std::optional<std::int64_t> max_target_length;  // none: the longest label
  double validation_split = 0.1;
  std::int64_t max_train_samples = 0;  // use only the first rows; 0: all
  bool pad_to_max_length = false;      // pad every batch to max_length, as the guide's program does
  // training
  std::int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  train::TrainerOptions trainer;
  std::int64_t logging_steps = 10;
  double weight_decay = 0.01, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  std::int64_t seed = 42;
  std::optional<bool> bf16, fp16;
  // evaluation and output
  bool do_train = true, do_eval = true;
  std::int64_t max_eval_steps = 0;  // 0: all
  train::CheckpointOptions checkpoints;
  std::string metrics_file;  // empty: output_dir/metrics.jsonl
  bool disable_tqdm = false, save_model = true;
  std::optional<bool> print_model;  // unset: unless it is long
  std::string device = "auto";
  fsdp::GatherForm gather = fsdp::GatherForm::kAuto;
  std::vector<std::string> notes;  // what was given in vain
};

/// The flags, bound to `options`, whose values are the defaults.
config::OptionTable seq2seq_table(Seq2SeqOptions& options);

/// nullopt: help was asked for and printed. ConfigError says all that is wrong with the flags.
std::optional<Seq2SeqOptions> parse_seq2seq(const std::vector<std::string>& args, std::ostream& out);

int seq2seq(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
