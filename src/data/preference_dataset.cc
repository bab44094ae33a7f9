#include "data/preference_dataset.h"

#include <bit>

#include "data/row_cache.h"
#include "data/stored_preference.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

// Entries of SftRow::document_lengths.
enum Entry { kPrompt, kChosen, kRejectedPrompt, kRejected, kLabel, kHasMargin, kMargin, kEntries };

}  // namespace

SftRow stored_form(const PreferenceRow& row) {
  SftRow out;
  for (const auto* part : {&row.prompt, &row.chosen, &row.rejected_prompt, &row.rejected}) {
    out.input_ids.insert(out.input_ids.end(), part->begin(), part->end());
    out.document_lengths.push_back(static_cast<std::int32_t>(part->size()));
  }
  out.labels.resize(out.input_ids.size());
  out.document_lengths.insert(out.document_lengths.end(),
                              {row.label, row.has_margin, std::bit_cast<std::int32_t>(row.margin)});
  return out;
}

std::int64_t PreferenceDataset::size() const {
  return rows_->size();
}

PreferenceRow PreferenceDataset::row(std::int64_t i) const {
  const auto stored = rows_->copy(i);
  const auto& entries = stored.document_lengths;
  TESSERA_CHECK(entries.size() == kEntries, "a row of preference data");
  PreferenceRow out;
  const std::int32_t* at = stored.input_ids.data();
  for (auto [part, entry] : {std::pair{&out.prompt, kPrompt}, std::pair{&out.chosen, kChosen},
                             std::pair{&out.rejected_prompt, kRejectedPrompt}, std::pair{&out.rejected, kRejected}}) {
    part->assign(at, at + entries[entry]);
    at += entries[entry];
  }
  out.label = entries[kLabel] != 0;
  out.has_margin = entries[kHasMargin] != 0;
  out.margin = std::bit_cast<float>(entries[kMargin]);
  return out;
}

RowMark PreferenceDataset::mark(std::int64_t i) const {
  return rows_->mark(i);
}

std::pair<std::int64_t, std::int64_t> PreferenceDataset::lengths(std::int64_t i) const {
  const auto n = rows_->document_lengths(i);
  return {n[kPrompt] + n[kChosen], n[kRejectedPrompt] + n[kRejected]};
}

std::int64_t PreferenceDataset::desirable() const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < size(); ++i) count += rows_->document_lengths(i)[kLabel] != 0;
  return count;
}

}  // namespace tessera::data
