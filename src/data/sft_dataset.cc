#include "data/sft_dataset.h"

#include <algorithm>

#include "data/row_cache.h"

namespace tessera::data {

SftDataset::SftDataset(std::shared_ptr<const RowCache> rows, bool separate_documents)
    : rows_(std::move(rows)), separate_documents_(separate_documents) {}

std::int64_t SftDataset::size() const {
  return rows_->size();
}

SftRow SftDataset::row(std::int64_t i) const {
  return rows_->copy(i);
}

RowMark SftDataset::mark(std::int64_t i) const {
  return rows_->mark(i);
}

std::int64_t SftDataset::length(std::int64_t i) const {
  return rows_->row_length(i);
}

std::int64_t SftDataset::total_tokens() const {
  return rows_->total_tokens();
}

std::int64_t SftDataset::label_count(std::int64_t i) const {
  const auto row = rows_->copy(i);
  std::int64_t count = 0;
  const std::int32_t* label = row.labels.data();
  for (const auto length : row.document_lengths) {
    if (length > 0) count += std::count_if(label + 1, label + length, [](auto value) { return value != -100; });
    label += length;
  }
  return count;
}

}  // namespace tessera::data
