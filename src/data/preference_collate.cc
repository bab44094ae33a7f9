#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "data/preference_dataset.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

struct Side {
  const std::vector<std::int32_t>*prompt, *completion;
};

/// The part [first, last) of prompt + completion that is left of it.
std::pair<std::int64_t, std::int64_t> kept(const Side& side, const PreferenceCollateOptions& options) {
  const auto size = static_cast<std::int64_t>(side.prompt->size() + side.completion->size());
  if (options.max_length == 0 || size <= options.max_length) return {0, size};
  if (options.truncation_mode == TruncationMode::kKeepStart) return {0, options.max_length};
  return {size - options.max_length, size};
}

PreferenceBatch pad(const std::vector<Side>& sides, const PreferenceCollateOptions& options) {
  const auto multiple = options.pad_to_multiple_of;
  TESSERA_CHECK(multiple > 0, "padding goes to a positive multiple");
  std::int64_t longest = 1;
  for (const auto& side : sides) {
    const auto [first, last] = kept(side, options);
    longest = std::max(longest, last - first);
  }
  const auto length = (longest + multiple - 1) / multiple * multiple;
  const auto rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(sides.size()));
  PreferenceBatch out;
  out.input_ids = at::full({rows, length}, options.pad_id, at::kLong);
  out.attention_mask = at::zeros({rows, length}, at::kLong);
  out.completion_mask = at::zeros({rows, length}, at::kLong);
  for (std::size_t r = 0; r < sides.size(); ++r) {
    const auto& [prompt, completion] = sides[r];
    const auto [first, last] = kept(sides[r], options);
    const auto border = static_cast<std::int64_t>(prompt->size());
    const auto row = static_cast<std::int64_t>(r) * length;
    for (auto i = first; i < last; ++i) {
      const bool answers = i >= border;
      const auto at = row + i - first;
      out.input_ids.mutable_data_ptr<std::int64_t>()[at] =
          answers ? (*completion)[static_cast<std::size_t>(i - border)] : (*prompt)[static_cast<std::size_t>(i)];
      out.attention_mask.mutable_data_ptr<std::int64_t>()[at] = 1;
      out.completion_mask.mutable_data_ptr<std::int64_t>()[at] = answers;
    }
  }
  return out;
}

}  // namespace

PreferenceBatch collate_pairs(const std::vector<PreferenceRow>& rows, const PreferenceCollateOptions& options) {
  std::vector<Side> sides;
  for (const auto& row : rows) sides.push_back({&row.prompt, &row.chosen});
  for (const auto& row : rows) sides.push_back({&row.rejected_prompt, &row.rejected});
  auto out = pad(sides, options);
  out.rows = static_cast<std::int64_t>(rows.size());
  if (!rows.empty() && rows.front().has_margin) {
    std::vector<float> margins;
    for (const auto& row : rows) margins.push_back(row.margin);
    out.margins = at::tensor(margins);
  }
  return out;
}

PreferenceBatch collate_unpaired(const std::vector<PreferenceRow>& rows, const PreferenceCollateOptions& options) {
  std::vector<Side> sides;
  auto labels = at::zeros({static_cast<std::int64_t>(rows.size())}, at::kBool);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    sides.push_back({&rows[r].prompt, &rows[r].chosen});
    labels.mutable_data_ptr<bool>()[r] = rows[r].label;
  }
  auto out = pad(sides, options);
  out.rows = static_cast<std::int64_t>(rows.size());
  out.labels = labels;
  return out;
}

PreferenceBatch collate_mismatched(const PreferenceDataset& dataset, const std::vector<std::int64_t>& numbers,
                                   std::int64_t group, const PreferenceCollateOptions& options) {
  std::vector<PreferenceRow> rows;
  for (const auto number : numbers) {
    const auto begin = number / group * group, end = std::min(begin + group, dataset.size());
    rows.push_back(dataset.row(number));
    rows.back().chosen = dataset.row(number == begin ? end - 1 : number - 1).chosen;
  }
  return collate_unpaired(rows, options);
}

}  // namespace tessera::data
