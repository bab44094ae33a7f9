#pragma once
// What supervised fine-tuning does with its data. Names and defaults are those of the SFT script and of TRL's
// SFTConfig.
#include <cstdint>
#include <optional>
#include <string>

#include "data/dataset_options.h"

namespace tessera::data {

enum class PackingStrategy {
  kBfd,       // best-fit decreasing; documents longer than max_length are cut; no attention across documents
  kBfdSplit,  // the same, but what is cut off becomes documents of its own
  kWrapped,   // all tokens in a row, cut into pieces of max_length; attention crosses documents
};

struct SftDataOptions : DatasetOptions {
  std::string dataset_text_field = "text";
  std::string chat_template;                 // Jinja source; empty: the tokenizer's
  std::string template_place;                // of the template, for messages: its file, or a name
  bool add_special_tokens = true;            // what the tokenizer's post-processor adds around plain text, as in TRL
  bool append_concat_token = false;          // eos behind every row that does not end with it (chats, too)
  bool standardize_roles = false;            // human and gpt of ShareGPT are called user and assistant
  std::optional<bool> completion_only_loss;  // unset: yes for rows with a prompt and a completion
  bool assistant_only_loss = false;          // needs {% generation %} in the chat template
  std::int64_t max_length = 512;             // tokens; 0: no limit (not with packing)
  bool packing = false;
  PackingStrategy packing_strategy = PackingStrategy::kBfd;
  std::optional<bool> eval_packing;  // unset: as packing
  int dataset_num_proc = 0;          // threads that tokenise; 0: as many as the machine has, at most 16
  std::int64_t most_rows = 0;        // of the first split: read no further when there are so many to train on; 0: all
  std::string cache_folder;          // for tokenised rows; empty: tessera/datasets below the user's cache folder
};

struct SftCollateOptions {
  std::int64_t pad_id = 0;
  std::int64_t pad_to_multiple_of = 1;
  bool padding_free = false;  // rows one behind the other instead of padded; packing by bfd implies it
};

}  // namespace tessera::data
