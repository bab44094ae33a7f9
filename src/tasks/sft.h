#pragma once
// `tessera sft`: supervised fine-tuning of causal language models, the program of PEFT's examples/sft (train.py over
// TRL's SFTTrainer) with its flags, fully sharded.
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sft_dataset.h"
#include "tasks/training_job.h"
#include "tasks/training_tokenizer.h"
#include "tasks/trl_flags.h"

namespace tessera::tasks {

struct SftOptions;
/// One of several adapters: its name, and the options of the run that would train it alone.
struct SideBySide {
  std::string name;
  std::shared_ptr<const SftOptions> options;
};

struct SftOptions : JobOptions, TokenizerFlags, TrlFlags {
  SftOptions();

  data::SftDataOptions data;
  std::int64_t pad_to_multiple_of = 1;
  bool padding_free = false;
  std::int64_t eval_generate = 0;  // prompts answered at each evaluation
  std::int64_t eval_generate_max_new_tokens = 64;
  std::string adapters_file;             // --adapters
  std::vector<SideBySide> side_by_side;  // what it lists; then these options are the first one's
};

/// What decides how a row is read and which of its tokens count.
void add_row_reading_flags(config::OptionTable& table, data::SftDataOptions& options, const char* group);

/// The flags, bound to `options`, whose values are the defaults.
config::OptionTable sft_table(SftOptions& options);

/// nullopt: help was asked for and printed. ConfigError says all that is wrong with the flags.
std::optional<SftOptions> parse_sft(const std::vector<std::string>& args, std::ostream& out);

int sft(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
