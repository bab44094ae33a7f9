#pragma once
// Rows of tokens -> rows of at most a given length, as TRL's pack_dataset.
#include <cstdint>
#include <vector>

#include "data/sft_dataset.h"

namespace tessera::data {

/// One batch of rows (TRL packs 1000 at a time: kPackedTogether); each row is one document. Best-fit decreasing follows
/// "Fewer Truncations Improve Language Modeling" (arXiv 2404.10830). `length` > 0.
std::vector<SftRow> pack(std::vector<SftRow> rows, std::int64_t length, PackingStrategy strategy);
inline constexpr std::int64_t kPackedTogether = 1000;

}  // namespace tessera::data
