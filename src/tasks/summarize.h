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
#include "tasks/text_evaluation.h"
#include "tasks/training_job.h"

namespace tessera::tasks {

struct SummarizeOptions : JobOptions {
  SummarizeOptions();

  data::WikiHowOptions data;
  std::int64_t max_source_length = 512, max_target_length = 150;  // tokens, with </s>
  bool pad_to_max_length = false;
  GenerateFlags generate;
  double gamma = 0.7;          // of the tutorial's schedule
  bool falls_by_gamma = true;  // that is the schedule: no other was named
  bool track_memory = true, save_torch_file = true;
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
