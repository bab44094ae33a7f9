#pragma once
// `tessera seq2seq`: fine-tunes an encoder-decoder model on pairs of texts, with LoRA or in full, fully sharded. The
// program of PEFT's FSDP guide (peft_lora_seq2seq_accelerate_fsdp) with its defaults and the Trainer's flag names, and
// with the flags of transformers' run_summarization.py and run_translation.py.
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "data/text_pair.h"
#include "tasks/script_flags.h"
#include "tasks/text_evaluation.h"
#include "tasks/training_job.h"

namespace tessera::tasks {

struct Seq2SeqOptions : JobOptions, RowFlags {
  Seq2SeqOptions();

  std::string source_lang, target_lang;  // of rows {"translation": {"en": ..., "de": ...}}; empty: other rows
  std::string source_prefix;             // before every input text
  std::int64_t max_length = 64;
  std::optional<std::int64_t> max_target_length;      // none: the longest label
  std::optional<std::int64_t> val_max_target_length;  // the same in evaluations; none: max_target_length
  bool pad_to_max_length = false;                     // pad every batch to max_length, as the guide's program does
  std::int64_t max_eval_steps = 0;                    // batches of an evaluation; 0: all
  bool ignore_pad_token_for_loss = true;
  GenerateFlags generate;
};

/// The flags, bound to `options`, whose values are the defaults.
config::OptionTable seq2seq_table(Seq2SeqOptions& options);

/// nullopt: help was asked for and printed. ConfigError says all that is wrong with the flags.
std::optional<Seq2SeqOptions> parse_seq2seq(const std::vector<std::string>& args, std::ostream& out);

int seq2seq(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
