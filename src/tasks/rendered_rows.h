#pragma once
// Rows of training data as text: what the model reads of them, and which part the loss counts.
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"
#include "data/preference_tokenize.h"
#include "data/row_source.h"
#include "data/sft_options.h"
#include "data/sft_tokenize.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

class RenderedRows {
 public:
  /// The commands whose rows these can be.
  static const std::vector<std::string>& commands();

  RenderedRows(data::SftDataOptions options, std::shared_ptr<const text::Tokenizer> tokenizer)
      : options_(std::move(options)), tokenizer_(std::move(tokenizer)) {}

  /// What the command trains on: one answer, of pairs for kto two. Where the loss counts all that is behind a prompt,
  /// {"prompt", "completion"}; where it counts all, {"text"}; else {"text", "loss": [what it counts, ...]}. Of pairs
  /// {"prompt", "chosen", "rejected"}, of reward models, which read both whole, without the prompt. Error names the
  /// row.
  std::vector<chat::Dict> answers(const std::string& command, const data::SourceRow& row);

 private:
  chat::Dict sft(const data::SourceRow& row);
  std::vector<chat::Dict> preference(const std::string& command, const data::SourceRow& row);
  chat::Dict of_labels(const data::SftRow& row) const;
  std::string text_of(const std::vector<std::int32_t>& ids) const;
  /// Of ids that come behind others: their part of the whole text.
  std::string text_behind(const std::vector<std::int32_t>& first, const std::vector<std::int32_t>& ids) const;

  data::SftDataOptions options_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::map<data::RowKind, std::unique_ptr<const data::SftTokenizer>> sft_;
  std::map<std::string, std::unique_ptr<const data::PreferenceTokenizer>> preference_;  // by command
};

/// The command that rows with these columns are for; empty: none.
std::string training_command(const chat::Dict& row, const std::string& text_field);

}  // namespace tessera::tasks
