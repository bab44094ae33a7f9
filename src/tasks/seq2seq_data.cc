#include "tasks/seq2seq_data.h"

#include <algorithm>

namespace tessera::tasks {
namespace {

std::int64_t longest_target(const data::TokenizedPairs& pairs) {
  std::size_t longest = 1;
  for (const auto& row : pairs.rows) longest = std::max(longest, row.target.size());
  return static_cast<std::int64_t>(longest);
}

}  // namespace

Seq2SeqData load_seq2seq_data(const Seq2SeqOptions& options, const std::string& tokenizer_path) {
  Seq2SeqData d;
  auto splits = data::read_splits(
      {options.dataset_path, options.dataset_config}, options.columns,
      {.validation_fraction = options.validation_split, .seed = static_cast<std::uint64_t>(options.training.seed)});
  d.notes = splits.notes;
  d.train_rows = std::move(splits.train);
  d.validation_rows = std::move(splits.validation);
  if (options.max_train_samples > 0 && options.max_train_samples < static_cast<std::int64_t>(d.train_rows.size())) {
    d.train_rows.resize(static_cast<std::size_t>(options.max_train_samples));
  }
  d.tokenizer = text::open_tokenizer(tokenizer_path);
  const data::TokenizeOptions limits{.max_source_length = options.max_length,
                                     .max_target_length = options.max_target_length.value_or(512)};
  d.train = data::tokenize(d.train_rows, *d.tokenizer, limits);
  d.validation = data::tokenize(d.validation_rows, *d.tokenizer, limits);
  data::note_cut({d.train.cut_sources + d.validation.cut_sources, "input", "--max_length", limits.max_source_length},
                 d.notes);
  data::note_cut(
      {d.train.cut_targets + d.validation.cut_targets, "label", "--max_target_length", limits.max_target_length},
      d.notes);
  d.collate = {.padding = options.pad_to_max_length ? data::Padding::kMaxLength : data::Padding::kLongest,
               .max_source_length = options.max_length,
               .max_target_length =
                   options.max_target_length.value_or(std::max(longest_target(d.train), longest_target(d.validation)))};
  return d;
}

}  // namespace tessera::tasks
