#include "tasks/seq2seq_data.h"

#include <algorithm>

namespace tessera::tasks {
namespace {

constexpr std::int64_t kLongestLabel = 512;  // where no flag says it

std::int64_t longest_target(const data::TokenizedPairs& pairs) {
  std::size_t longest = 1;
  for (const auto& row : pairs.rows) longest = std::max(longest, row.target.size());
  return static_cast<std::int64_t>(longest);
}

std::optional<std::int64_t> evaluated_target_length(const Seq2SeqOptions& o) {
  return o.val_max_target_length ? o.val_max_target_length : o.max_target_length;
}

PairSet prepared(std::vector<data::TextPair> rows, const Seq2SeqOptions& o, const text::Tokenizer& tokenizer,
                 std::optional<std::int64_t> target_length) {
  for (auto& row : rows) row.source.insert(0, o.source_prefix);
  PairSet set;
  set.rows = data::tokenize(
      rows, tokenizer, {.max_source_length = o.max_length, .max_target_length = target_length.value_or(kLongestLabel)});
  set.collate = {.padding = o.pad_to_max_length ? data::Padding::kMaxLength : data::Padding::kLongest,
                 .max_source_length = o.max_length,
                 .max_target_length = target_length.value_or(longest_target(set.rows))};
  return set;
}

void note_cut(const Seq2SeqOptions& o, Seq2SeqData& d) {
  const auto evaluated = d.validation.rows.cut_targets + d.test.rows.cut_targets;
  const auto inputs = d.train.rows.cut_sources + d.validation.rows.cut_sources + d.test.rows.cut_sources;
  data::note_cut({inputs, "input", "--max_length", o.max_length}, d.notes);
  const char* flag = o.val_max_target_length ? "--val_max_target_length" : "--max_target_length";
  const auto length = o.max_target_length.value_or(kLongestLabel);
  data::note_cut({d.train.rows.cut_targets, "label", "--max_target_length", length}, d.notes);
  data::note_cut({evaluated, "evaluated label", flag, o.val_max_target_length.value_or(length)}, d.notes);
}

}  // namespace

std::int64_t most_label_tokens(const Seq2SeqOptions& o, const PairSet& set) {
  return evaluated_target_length(o).value_or(longest_target(set.rows) + 1);  // behind the start token
}

Seq2SeqData load_seq2seq_data(const Seq2SeqOptions& o, const std::string& tokenizer_path) {
  Seq2SeqData d;
  auto splits = read_labelled_rows(o, o.columns, o.training.seed);
  d.notes = splits.notes;
  data::keep_first(splits.train, o.max_train_samples);
  data::keep_first(splits.validation, o.max_eval_samples);
  d.tokenizer = text::open_tokenizer(tokenizer_path);
  d.train = prepared(std::move(splits.train), o, *d.tokenizer, o.max_target_length);
  d.validation = prepared(std::move(splits.validation), o, *d.tokenizer, evaluated_target_length(o));
  if (o.predict.do_predict)
    d.test = prepared(read_test_rows(o, o.columns, d.notes), o, *d.tokenizer, evaluated_target_length(o));
  note_cut(o, d);
  return d;
}

}  // namespace tessera::tasks
