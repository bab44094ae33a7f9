#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "data/sft_dataset.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

SftBatch without_rows(const SftCollateOptions& options) {
  SftBatch out;
  const std::int64_t s = options.pad_to_multiple_of;
  out.input_ids = at::full({1, s}, options.pad_id, at::kLong);
  out.labels = at::full({1, s}, -100, at::kLong);
  out.attention_mask = at::zeros({1, s}, at::kLong);
  out.position_ids = at::arange(s, at::kLong).unsqueeze(0);
  out.row_ids = at::full({1}, -1, at::kLong);
  return out;
}

// One row: labels of a document's first token count for nothing, since the token before is another document's.
SftRow one_behind_the_other(const std::vector<SftRow>& rows) {
  SftRow out;
  for (const auto& row : rows) {
    std::size_t begin = out.labels.size();
    out.input_ids.insert(out.input_ids.end(), row.input_ids.begin(), row.input_ids.end());
    out.labels.insert(out.labels.end(), row.labels.begin(), row.labels.end());
    for (const auto length : row.document_lengths) {
      if (length > 0) out.labels[begin] = -100;
      begin += static_cast<std::size_t>(length);
      out.document_lengths.push_back(length);
    }
  }
  return out;
}

}  // namespace

SftBatch collate_sft(const SftDataset& dataset, const std::vector<std::int64_t>& numbers,
                     const SftCollateOptions& options) {
  TESSERA_CHECK(options.pad_to_multiple_of > 0, "padding goes to a positive multiple");
  if (numbers.empty()) return without_rows(options);
  std::vector<SftRow> rows;
  for (const auto number : numbers) rows.push_back(dataset.row(number));
  const bool padding_free = options.padding_free || dataset.separate_documents();
  std::vector<std::int64_t> ids = numbers;
  if (padding_free) {
    ids.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) ids.insert(ids.end(), rows[i].input_ids.size(), numbers[i]);
    rows = {one_behind_the_other(rows)};
  }
  std::int64_t longest = 1;
  for (const auto& row : rows) longest = std::max(longest, static_cast<std::int64_t>(row.input_ids.size()));
  const auto multiple = options.pad_to_multiple_of;
  const std::int64_t s = (longest + multiple - 1) / multiple * multiple, b = static_cast<std::int64_t>(rows.size());
  SftBatch out;
  if (padding_free) ids.resize(static_cast<std::size_t>(s), ids.back());
  out.row_ids = at::tensor(ids, at::TensorOptions().dtype(at::kLong));
  if (padding_free) out.row_ids = out.row_ids.unsqueeze(0);
  out.input_ids = at::full({b, s}, options.pad_id, at::kLong);
  out.labels = at::full({b, s}, -100, at::kLong);
  out.position_ids = at::zeros({b, s}, at::kLong);
  if (!padding_free) out.attention_mask = at::zeros({b, s}, at::kLong);
  auto* tokens = out.input_ids.mutable_data_ptr<std::int64_t>();
  auto* labels = out.labels.mutable_data_ptr<std::int64_t>();
  auto* positions = out.position_ids.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < b; ++i) {
    const auto& row = rows[static_cast<std::size_t>(i)];
    std::copy(row.input_ids.begin(), row.input_ids.end(), tokens + i * s);
    std::copy(row.labels.begin(), row.labels.end(), labels + i * s);
    std::int64_t at = i * s;
    const auto size = static_cast<std::int64_t>(row.input_ids.size());
    if (padding_free) {
      for (const auto length : row.document_lengths)
        for (std::int32_t position = 0; position < length; ++position) positions[at++] = position;
    } else {
      for (std::int64_t position = 0; position < s; ++position) positions[at++] = position;
      std::fill_n(out.attention_mask.mutable_data_ptr<std::int64_t>() + i * s, size, 1);
    }
    out.label_count +=
        std::count_if(labels + i * s + 1, labels + (i + 1) * s, [](auto label) { return label != -100; });
  }
  return out;
}

}  // namespace tessera::data
