#pragma once
// `tessera generate`: continues prompts or answers conversations with a model folder, with or without an adapter, on
// one process or sharded over several.
#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "config/options.h"
#include "models/generation.h"
#include "tasks/named_folder.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::tasks {

struct GenerateOptions {
  std::string model, tokenizer;
  std::vector<std::string> adapter_words;      // as given
  std::vector<NamedFolder> adapters;           // what they say; of several each row takes one
  std::string adapter_name;                    // that of rows that name none; empty: the first
  std::optional<std::string> prompt, message;  // one text to continue; one user message to answer
  std::string system_prompt;                   // before `message`
  std::string input_file;                      // rows of prompts or messages, JSONL; "-": stdin
  std::string chat_template;                   // file or name; empty: the tokenizer's
  std::int64_t batch_size = 8;
  bool stream = true, skip_special_tokens = true;
  /// Changes to the folder's generation_config.json: what was given on the command line.
  nlohmann::json settings;
  std::int64_t seed = 0;
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kFloat32;
  fsdp::GatherForm gather = fsdp::GatherForm::kAuto;
  std::string device = "auto";
  std::vector<std::string> notes;                       // what was given in vain
  std::vector<std::string> sampling_flags, beam_flags;  // given; they count where tokens are drawn, or beams searched
};

/// generate()'s arguments that the command line may set; unset ones stay what generation_config.json says.
struct DecodingFlags {
  std::optional<std::int64_t> max_new_tokens = 128, min_new_tokens, num_beams, num_return_sequences, top_k,
                              no_repeat_ngram_size, max_length;
  std::optional<double> temperature, top_p, min_p, typical_p, epsilon_cutoff, repetition_penalty, length_penalty;
  std::optional<bool> do_sample, renormalize_logits;
  std::optional<std::string> early_stopping;
  std::optional<std::vector<std::string>> eos_token_id;
  std::string bad_words_ids;  // JSON
};

/// The flags, bound to `options` and `decoding`, whose values are the defaults.
config::OptionTable generate_table(GenerateOptions& options, DecodingFlags& decoding);

/// nullopt: help was asked for and printed. ConfigError says all that is wrong with the flags.
std::optional<GenerateOptions> parse_generate(const std::vector<std::string>& args, std::ostream& out);

/// Of `tessera chat`: its flags are some of these, which say what answers and how.
std::optional<GenerateOptions> parse_chat(const std::vector<std::string>& args, std::ostream& out);

/// A text that the model continues.
struct Prompt {
  std::string text;
  bool add_special_tokens = true;                      // false: the template wrote them
  std::optional<std::string> expected = std::nullopt;  // the row's "completion"
  std::string adapter = {};                            // the row's "adapter"; empty: it names none
};
/// From the command line or the file, chats through the template. DataError names row and key.
std::vector<Prompt> read_prompts(const GenerateOptions& options, const std::string& tokenizer_folder);

/// With one --prompt or --message prints the text as it comes; else a JSON object a row: {"prompt", "generated":
/// [...]}, with "expected" where the row has a "completion"; then err says how many first texts equal it (but for
/// spaces around them).
int generate(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
