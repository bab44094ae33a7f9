#pragma once
// `tessera summarize`: fine-tunes T5 on WikiHow to write summaries, fully sharded. The program of PyTorch's advanced
// FSDP tutorial (T5_training.py) with its flags and defaults; docs/guides/summarize.md says where it differs, and why.
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "config/accelerate.h"
#include "data/wikihow.h"
#include "tasks/assemble.h"
#include "train/checkpoint_options.h"
#include "train/trainer.h"

namespace tessera::tasks {

struct SummarizeOptions {
  // model
  std::string model_name_or_path = "t5-base";
  std::string tokenizer_name_or_path;  // empty: the model's folder
  // data
  data::WikiHowOptions data;
  std::int64_t max_source_length = 512, max_target_length = 150;  // tokens, with </s>
  bool pad_to_max_length = false;
  // training
  std::int64_t batch_size = 4, test_batch_size = 4, epochs = 2;  // batches: rows a rank
  double lr = 0.002, gamma = 0.7;
  std::int64_t seed = 1;
  std::optional<bool> bf16, fp16;
  fsdp::GatherForm gather = fsdp::GatherForm::kAuto;
  std::string device = "auto";
  bool no_cuda = false;
  // evaluation and output
  bool do_train = true, track_memory = true, run_validation = true, save_model = true, save_torch_file = true;
  train::CheckpointOptions checkpoints;
  std::string metrics_file;  // empty: output_dir/metrics.jsonl
  bool disable_tqdm = false, print_model = false;
  std::vector<std::string> notes;  // what was given in vain
};

/// The flags, bound to `options`, whose values are the defaults.
config::OptionTable summarize_table(SummarizeOptions& options);

/// nullopt: help was asked for and printed. ConfigError says all that is wrong with the flags.
std::optional<SummarizeOptions> parse_summarize(const std::vector<std::string>& args, std::ostream& out);

/// The launcher's settings, with the tutorial's own choices where the launcher leaves them open: a unit for each
/// T5Block, bfloat16 where the processor has it. `notes`: what was found and chosen.
config::AccelerateConfig summarize_settings(const SummarizeOptions& options, std::vector<std::string>& notes);

int summarize(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
