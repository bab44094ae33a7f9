#pragma once
// Data files -> tokenised pairs (or labelled rows) for preference training, as TRL 1.16 prepares and collates them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset_options.h"
#include "data/row_mark.h"
#include "text/tokenizer.h"

namespace tessera::data {

class RowCache;

/// How a trainer of TRL prepares rows.
enum class PreferenceForm {
  kPairs,      // DPO: prompt, chosen, rejected
  kOwnPrompt,  // ORPO, CPO: each side with its own prompt, cut while it is prepared
  kUnpaired,   // KTO: prompt, completion and a label; pairs become two rows
  kWhole,      // reward models: two whole conversations or texts
};

enum class TruncationMode { kKeepStart, kKeepEnd };

struct PreferenceDataOptions : DatasetOptions {
  PreferenceForm form = PreferenceForm::kPairs;
  std::string chat_template;       // Jinja source; empty: the tokenizer's
  std::string template_place;      // of the template, for messages: its file, or a name
  std::int64_t max_length = 1024;  // tokens of prompt and completion; 0: no limit
  TruncationMode truncation_mode = TruncationMode::kKeepStart;
  int dataset_num_proc = 0;    // threads that tokenise; 0: as many as the machine has, at most 16
  std::int64_t most_rows = 0;  // of the first split: read no further when there are so many to train on; 0: all
  std::string cache_folder;    // for tokenised rows; empty: tessera/datasets below the user's cache folder
};

struct PreferenceRow {
  std::vector<std::int32_t> prompt, chosen;  // of KTO the completion; of reward models no prompt
  std::vector<std::int32_t> rejected_prompt, rejected;
  bool label = true;  // KTO: desirable
  float margin = 0;   // reward models, where rows have one
  bool has_margin = false;
  bool has_prompt = true;  // as read from a file: false where it is an empty text
};

/// The rows lie in a file on disk that is mapped. Thread-safe.
class PreferenceDataset {
 public:
  explicit PreferenceDataset(std::shared_ptr<const RowCache> rows) : rows_(std::move(rows)) {}
  std::int64_t size() const;
  PreferenceRow row(std::int64_t i) const;
  RowMark mark(std::int64_t i) const;
  /// Tokens of a row's sides: prompt with chosen, prompt with rejected (0 of unpaired rows).
  std::pair<std::int64_t, std::int64_t> lengths(std::int64_t i) const;
  std::int64_t desirable() const;  // KTO: rows with that label

 private:
  std::shared_ptr<const RowCache> rows_;
};

struct PreferenceSplits {
  std::shared_ptr<const PreferenceDataset> train, eval;  // eval is null where there is no such split
  std::vector<std::string> files;                        // that were read
};

/// As load_sft_data: reads, tokenises, drops what is too long, and keeps the result in a file that the next run maps.
PreferenceSplits load_preference_data(const PreferenceDataOptions& options,
                                      std::shared_ptr<const text::Tokenizer> tokenizer,
                                      std::vector<std::string>& notes);

struct PreferenceCollateOptions {
  std::int64_t pad_id = 0;
  std::int64_t pad_to_multiple_of = 1;
  std::int64_t max_length = 0;  // rows are cut to it (kPairs, kUnpaired); 0: not
  TruncationMode truncation_mode = TruncationMode::kKeepStart;
};

/// Right padded. R: 2 B rows of pairs (all chosen, then all rejected), B of unpaired ones.
struct PreferenceBatch {
  at::Tensor input_ids;        // [R, S] int64
  at::Tensor attention_mask;   // [R, S] int64
  at::Tensor completion_mask;  // [R, S] int64, 1 on completion tokens
  at::Tensor labels;           // [B] bool, of unpaired rows
  at::Tensor margins;          // [B] float32; undefined unless the batch's first row has one
  std::int64_t rows = 0;       // B; 0: one row of padding stands for none
};

PreferenceBatch collate_pairs(const std::vector<PreferenceRow>& rows, const PreferenceCollateOptions& options);
PreferenceBatch collate_unpaired(const std::vector<PreferenceRow>& rows, const PreferenceCollateOptions& options);
/// KTO's estimate of the divergence needs completions of other prompts: row i of a group takes that of row i - 1, the
/// first that of the last. Groups are `group` rows of the data set, as TRL forms them while it prepares.
PreferenceBatch collate_mismatched(const PreferenceDataset& rows, const std::vector<std::int64_t>& numbers,
                                   std::int64_t group, const PreferenceCollateOptions& options);

}  // namespace tessera::data
