#include "tasks/left_padding.h"

#include <ATen/ops/full.h>

#include <algorithm>

namespace tessera::tasks {

LeftPadded left_padded(const std::vector<std::vector<std::int32_t>>& rows) {
  std::size_t longest = 1;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  const auto batch = static_cast<std::int64_t>(rows.size()), length = static_cast<std::int64_t>(longest);
  const auto options = at::TensorOptions().dtype(at::kLong);
  LeftPadded out{at::full({batch, length}, -1, options), at::full({batch, length}, 0, options)};
  for (std::int64_t r = 0; r < batch; ++r) {
    const auto& row = rows[static_cast<std::size_t>(r)];
    const auto first = length - static_cast<std::int64_t>(row.size());
    auto* ids = out.ids.mutable_data_ptr<std::int64_t>() + r * length + first;
    std::copy(row.begin(), row.end(), ids);
    out.mask.select(0, r).narrow(0, first, length - first).fill_(1);
  }
  return out;
}

std::string generated_text(const at::Tensor& sequences, std::int64_t r, std::int64_t skip,
                           const models::GenerationConfig& settings, const text::Tokenizer& tokenizer,
                           bool skip_special) {
  const auto row = sequences.select(0, r).contiguous();
  const auto* p = row.const_data_ptr<std::int64_t>();
  std::vector<std::int32_t> ids;
  for (std::int64_t i = skip; i < row.numel(); ++i) {
    ids.push_back(static_cast<std::int32_t>(p[i]));
    const auto& eos = settings.eos_token_ids;
    if (std::find(eos.begin(), eos.end(), p[i]) != eos.end()) break;
  }
  return tokenizer.decode(ids, skip_special);
}

}  // namespace tessera::tasks
