#include "data/collate.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/crc32c.h"
#include "tessera/base/error.h"

namespace tessera::data {

TokenizedPairs tokenize(const std::vector<TextPair>& pairs, const text::Tokenizer& tokenizer,
                        const TokenizeOptions& options) {
  TokenizedPairs out;
  out.pad_id = tokenizer.pad_id();
  if (out.pad_id < 0) throw DataError("the tokenizer has no padding token (pad_token in tokenizer_config.json)");
  text::EncodeOptions source, target;
  source.max_length = options.max_source_length;
  target.max_length = options.max_target_length;
  out.rows.reserve(pairs.size());
  for (const auto& pair : pairs)
    out.rows.push_back({encode_and_count(tokenizer, pair.source, {}, source, out.cut_sources).ids,
                        encode_and_count(tokenizer, pair.target, {}, target, out.cut_targets).ids});
  return out;
}

text::Encoding encode_and_count(const text::Tokenizer& tokenizer, const std::string& text,
                                const std::optional<std::string>& second, const text::EncodeOptions& limit,
                                std::int64_t& cut) {
  const auto encode = [&](const text::EncodeOptions& options) {
    return second ? tokenizer.encode_pair(text, *second, options) : tokenizer.encode(text, options);
  };
  auto row = encode(limit);
  const bool is_full = std::ssize(row.ids) >= limit.max_length;
  if (is_full && std::ssize(encode({}).ids) > limit.max_length) ++cut;
  return row;
}

void note_cut(const CutTexts& cut, std::vector<std::string>& notes) {
  if (cut.count == 0) return;
  notes.push_back(fmt::format("{} {}{} cut at {} {}; a larger one keeps more of {}", cut.count, cut.what,
                              cut.count == 1 ? " was" : "s were", cut.flag, cut.length,
                              cut.count == 1 ? "it" : "them"));
}

RowMark TokenizedPairs::mark(std::int64_t i) const {
  const auto& row = rows.at(static_cast<std::size_t>(i));
  const std::size_t sizes[] = {row.source.size(), row.target.size()};
  auto checksum = crc32c(sizes, sizeof(sizes));
  for (const auto* ids : {&row.source, &row.target})
    checksum = crc32c(ids->data(), ids->size() * sizeof(std::int32_t), checksum);
  return {static_cast<std::int64_t>(row.source.size() + row.target.size()), checksum};
}

PairLengths longest_rows(const TokenizedPairs& pairs, const CollateOptions& options) {
  PairLengths out;
  for (const auto& row : pairs.rows) {
    out.source = std::max(out.source, static_cast<std::int64_t>(row.source.size()));
    out.target = std::max(out.target, static_cast<std::int64_t>(row.target.size()));
  }
  if (options.padding == Padding::kMaxLength) out.target = options.max_target_length;
  return out;
}

PairBatch collate(const TokenizedPairs& pairs, const std::vector<std::int64_t>& rows, const CollateOptions& options) {
  const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(rows.size()));
  std::int64_t s = 1, t = 1;
  for (auto row : rows) {
    TESSERA_CHECK(row >= 0 && row < static_cast<std::int64_t>(pairs.rows.size()), "no such row");
    s = std::max(s, static_cast<std::int64_t>(pairs.rows[static_cast<std::size_t>(row)].source.size()));
    t = std::max(t, static_cast<std::int64_t>(pairs.rows[static_cast<std::size_t>(row)].target.size()));
  }
  if (options.padding == Padding::kMaxLength) {
    TESSERA_CHECK(s <= options.max_source_length && t <= options.max_target_length,
                  "rows must be cut before they are collated");
    s = options.max_source_length;
    t = options.max_target_length;
  }
  PairBatch out;
  out.input_ids = at::full({count, s}, pairs.pad_id, at::kLong);
  out.attention_mask = at::zeros({count, s}, at::kLong);
  out.labels = at::full({count, t}, -100, at::kLong);
  auto* ids = out.input_ids.mutable_data_ptr<std::int64_t>();
  auto* mask = out.attention_mask.mutable_data_ptr<std::int64_t>();
  auto* labels = out.labels.mutable_data_ptr<std::int64_t>();
  for (const auto number : rows) {
    const auto& row = pairs.rows[static_cast<std::size_t>(number)];
    std::copy(row.source.begin(), row.source.end(), ids);
    std::fill_n(mask, row.source.size(), 1);
    std::copy(row.target.begin(), row.target.end(), labels);
    out.label_count += static_cast<std::int64_t>(row.target.size());
    ids += s, mask += s, labels += t;
  }
  out.row_ids = rows.empty() ? at::full({1}, -1, at::kLong) : at::tensor(rows, at::TensorOptions().dtype(at::kLong));
  return out;
}

}  // namespace tessera::data
