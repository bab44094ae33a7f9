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
  const auto view = rows_->row(i);
  TESSERA_CHECK(view.documents == kEntries, "a row of preference data");
  PreferenceRow out;
  const std::int32_t* at = view.ids;
  for (auto [part, entry] : {std::pair{&out.prompt, kPrompt}, std::pair{&out.chosen, kChosen},
                             std::pair{&out.rejected_prompt, kRejectedPrompt}, std::pair{&out.rejected, kRejected}}) {
    part->assign(at, at + view.document_lengths[entry]);
    at += view.document_lengths[entry];
  }
  out.label = view.document_lengths[kLabel] != 0;
  out.has_margin = view.document_lengths[kHasMargin] != 0;
  out.margin = std::bit_cast<float>(view.document_lengths[kMargin]);
  return out;
}

RowMark PreferenceDataset::mark(std::int64_t i) const {
  return rows_->mark(i);
}

std::pair<std::int64_t, std::int64_t> PreferenceDataset::lengths(std::int64_t i) const {
  const auto* n = rows_->row(i).document_lengths;
  return {n[kPrompt] + n[kChosen], n[kRejectedPrompt] + n[kRejected]};
}

std::int64_t PreferenceDataset::desirable() const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < size(); ++i) count += rows_->row(i).document_lengths[kLabel] != 0;
  return count;
}

}  // namespace tessera::data
